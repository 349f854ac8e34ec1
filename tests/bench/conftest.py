from tests.engine.conftest import one_core

__all__ = ["one_core"]
