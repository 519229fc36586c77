"""Code that all readers share: record files, access to fields, and generic formats."""
