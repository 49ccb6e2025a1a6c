"""Other people's data in and out: flat arrays, tables (pandas, CSV, Parquet), Minari datasets."""
