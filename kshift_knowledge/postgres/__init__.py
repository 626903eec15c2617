"""PostgreSQL with pgvector: the only package that imports the driver. A module per noun."""
