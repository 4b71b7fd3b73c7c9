"""`python -m edge_serve.config.server_docs > docs/settings.md`: the settings page, from the table in `server`."""

from __future__ import annotations

import sys

from edge_serve.config.server import ALIASES, SETTINGS, defaults
from edge_serve.config.settings import by_group, flag_of, variable_of

_TRITON = """
id exit_timeout_secs log_verbose log_info log_warning log_error log_format log_file model_repository
exit_on_error disable_auto_complete_config strict_readiness model_control_mode repository_poll_secs
load_model model_config_name model_load_thread_count model_load_retry_count model_namespacing
enable_peer_access allow_http http_address http_port reuse_http_port http_header_forward_pattern
http_thread_count http_max_input_size http_restricted_api allow_grpc grpc_address grpc_port reuse_grpc_port
grpc_header_forward_pattern grpc_infer_thread_count grpc_infer_allocation_pool_size
grpc_max_response_pool_size grpc_use_ssl grpc_use_ssl_mutual grpc_server_cert grpc_server_key grpc_root_cert
grpc_infer_response_compression_level grpc_keepalive_time grpc_keepalive_timeout
grpc_keepalive_permit_without_calls grpc_http2_max_pings_without_data
grpc_http2_min_recv_ping_interval_without_data grpc_http2_max_ping_strikes grpc_max_connection_age
grpc_max_connection_age_grace grpc_restricted_protocol allow_sagemaker sagemaker_port
sagemaker_safe_port_range sagemaker_thread_count allow_vertex_ai vertex_ai_port vertex_ai_thread_count
vertex_ai_default_model allow_metrics allow_gpu_metrics allow_cpu_metrics metrics_address metrics_port
metrics_interval_ms metrics_config trace_config backend_directory backend_config repoagent_directory
cache_config cache_directory rate_limit rate_limit_resource pinned_memory_pool_byte_size
cuda_memory_pool_byte_size cuda_virtual_address_size min_supported_compute_capability
buffer_manager_thread_count host_policy model_load_gpu_limit allow_client_shm
"""
#: the flags of Triton 2.51, and of later ones, that are here too; all others are ours
TRITON = frozenset(_TRITON.split())

_HEAD = """\
# Settings

Generated from `edge_serve/config/server.py` by `python -m edge_serve.config.server_docs`; do not edit.

A flag has Triton's name, syntax and default, unless it is marked *ours*. Write `--name=value`
or `--name value`. The command line goes before the environment variable, and that before the default. Booleans are
`true`, `false`, `on`, `off`, `1` or `0`. In the environment the values of a setting that may be given several times (*)
are separated by `;`.

An unknown option ends the server, as in Triton. An unknown variable `EDGE_SERVE_...` is a warning in the log, with the
nearest name that is known. `edge-serve check-config` says whether a server would start with the settings as they are.

Two defaults differ from Triton's: `--http-address` and `--grpc-address` are the loopback address, so other machines
cannot connect until you name another one. The command `tritonserver` is the same program with Triton's defaults: both
addresses are `0.0.0.0`. The Debian package sets the addresses too ([what it opens](security.md)).
"""


def page() -> str:
    """docs/settings.md."""
    written = defaults()
    parts = [_HEAD]
    for group, names in by_group(SETTINGS).items():
        parts.append(f"\n## {group}\n\n| flag | values | default | meaning |\n|---|---|---|---|\n")
        parts += [_row(name, written[name]) for name in names]
    parts.append("\n## Other spellings\n\n| flag | the same as | |\n|---|---|---|\n")
    for flag, alias in ALIASES.items():
        target = f"{flag_of(alias.name)}={alias.form.format('<value>')}"
        parts.append(f"| `{flag}` | `{target}` | {'deprecated' if alias.deprecated else ''} |\n")
    return "".join(parts)


def _row(name: str, default: str) -> str:
    setting = SETTINGS[name]
    marks = f"{' *' if setting.many else ''}{'' if name in TRITON else ' *ours*'}"
    meaning = f"Accepted and ignored: {setting.ignored}." if setting.ignored else setting.help
    cells = [
        f"`{flag_of(name)}`{marks}<br>`{variable_of(name)}`",
        f"`{setting.kind.metavar}`" if setting.kind.metavar else "",
        f"`{default}`" if default else "",
        meaning,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
