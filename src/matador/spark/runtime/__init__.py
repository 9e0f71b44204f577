"""What the data pipeline needs of Spark, Java and the file system; knows no lake."""
