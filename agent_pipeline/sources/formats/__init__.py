"""What readers share: record files, field access, generic formats."""
