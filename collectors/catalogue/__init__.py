"""A catalogue of data sets that are made again where they are used."""
