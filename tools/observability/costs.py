"""PromQL of what tokens cost the operator: machines by the hour and energy, over tokens made.

Read next: `panels`, which has the panel.
"""

GPU_POWER = "hearth_node_gpu_power_watts"
PER_HOUR, PER_KWH = "hearth_node_price_per_hour", "hearth_node_price_per_kilowatt_hour"
PRICED_POWER = f"avg_over_time({GPU_POWER}[15m]) * on (instance) group_left () {PER_KWH}"
"""Of each GPU once, however many nodes of its machine see it."""
COST_PER_S = (
    f"(sum({PER_HOUR}) / 3600 + (sum(max by (uuid) ({PRICED_POWER})) / 3.6e6 or vector(0)))"
)


def cost_per_million(kinds: str) -> str:
    """What a million tokens of these kinds have cost in the last minutes, at nodes with a price."""
    made = f'rate(hearth_node_tokens_total{{kind=~"{kinds}"}}[15m]) and on (instance) {PER_HOUR}'
    return f"1e6 * {COST_PER_S} / (sum({made}) > 0)"
