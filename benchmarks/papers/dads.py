"""DADS with the settings of QDax's notebook, beside QDax itself."""

from .diayn import Ours, QDax, Settings, make_ant, report
from .paper import Experiment, Paper


SETTINGS = Settings(algorithm="DADS", num_steps=1_000_000)

PAPER = Paper(
    title="DADS beside QDax",
    text="""\
[Sharma et al.](https://arxiv.org/abs/1907.01657) have their numbers in figures, so QDax
runs beside ours, with the settings of its
[notebook](https://github.com/adaptive-intelligent-robotics/QDax/blob/main/examples/dads.ipynb):
the ant, the skills, SAC and its updates are those of the page on DIAYN, for 1,000,000
steps. The dynamics predict the change of x and y from the skill alone, as a mixture of
4 normals of unit variance over normalized changes, with hidden layers of 256 and 256.

The diversity return of a greedy episode is the sum of log p(change | skill) less the
logarithm of its mean over the 5 skills, each library by its own network and normalized
by its own moments; 100 log 5 = 160.9 is the most. Else the table is that of the page on
DIAYN.

What differs besides what that page lists: QDax clips the differences of logarithms at
50, and counts the last step of an episode as a change of 0 in its moments, while it
rewards it by the way to the next episode's first state, and its dynamics do not learn
from that step; ours takes the true successor.
""",
    experiments=(
        Experiment(
            env="brax/ant",
            contenders={"eqrl": Ours(SETTINGS), "QDax": QDax(SETTINGS)},
            options={"max_steps": 100},
            report=report,
            curves=("diversity_return",),
            make=make_ant,
        ),
    ),
)
