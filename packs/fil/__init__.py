"""The pack `fil`: forests of decision trees of XGBoost, LightGBM, and scikit-learn on the CPU, computed by Treelite.

backend     opens a model and its instances: start here
checkpoint  checks a checkpoint of Treelite before the library reads it
forest      a forest in the library's memory: facts about it, and its scores
formats     which file a model has, and in which format
instance    one instance: joins a batch, asks the forest, and hands out the answers
library     the calls of Treelite's C library; only this file loads it
scores      from scores to the output
settings    the parameters of config.pbtxt, as plain values
signature   a model's tensors beside the configuration's
"""
