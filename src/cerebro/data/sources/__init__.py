"""Raw data: tables in files anywhere, what to do with their bad rows, and where everything is."""
