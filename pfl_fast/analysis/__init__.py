"""Analyses of finished runs: tables and figures of the papers, without training again.

>>> from pfl_fast.analysis import ANALYSES
>>> ANALYSES["fairness"].summary
'accuracy over clients: standard deviation, worst decile, Gini coefficient'
"""

from pfl_fast.analysis.analyse import analyse, suitable
from pfl_fast.analysis.catalogue import ANALYSES, AnalysisEntry

__all__ = ["ANALYSES", "AnalysisEntry", "analyse", "suitable"]
