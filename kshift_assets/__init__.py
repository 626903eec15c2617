"""The write side as Dagster assets: the only package that imports dagster."""
