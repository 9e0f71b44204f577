"""The interface of the data pipeline to Spark, Java and the file system; independent of lakes."""
