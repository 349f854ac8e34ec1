"""Models of clients as files that other programs load without this library."""

from pfl_fast.export.client import default_file, export_client, portable_client
from pfl_fast.export.exported import ExportedModel, load_exported
from pfl_fast.export.formats import FORMATS
from pfl_fast.export.portable import Portable

__all__ = ["FORMATS", "ExportedModel", "Portable", "default_file", "export_client", "load_exported", "portable_client"]
