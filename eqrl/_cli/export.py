from .._interaction.export import export_policy
from .commands import Export
from .render import chosen_policy


def run_export(command: Export) -> int:
    """Writes one policy of a run into one file."""
    _, (agent, state, env) = chosen_policy(command)
    export_policy(command.output, agent, state, env)
    print(command.output)
    return 0
