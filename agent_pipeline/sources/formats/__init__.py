"""Code that readers share: record files, access to fields, and generic formats."""
