"""The pack `fil`: forests of decision trees of XGBoost, LightGBM, and scikit-learn on the CPU, computed by Treelite.

backend         opens a model and its instances: start here
checkpoint      checks a checkpoint of Treelite before the library reads it
forest          a forest in the library's memory: facts about it, and its scores
formats         which file a model has, and in which format
instance        one instance: joins a batch, asks the forest, and hands out the answers
library         the calls of Treelite's C library; only this file loads it
lightgbm_text   checks texts of LightGBM, and rewrites splits that Treelite computes wrong
lightgbm_trees  checks the trees in a text of LightGBM
scores          from scores to the output
settings        the parameters of config.pbtxt, as plain values
shap            Shapley values: the output `treeshap_output`
signature       a model's tensors beside the configuration's
structure       the shape of a tree
tree_paths      the paths of a tree, and the splits of all trees
"""
