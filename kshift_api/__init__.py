"""The read side over HTTP: keys in, cited passages out; it never reaches Dagster or the writer."""
