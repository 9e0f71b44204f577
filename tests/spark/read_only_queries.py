"""Queries that only read a lake, and others that try more, for every kind of session.

There is a view ``private`` that is not the lake's. ``{folder}`` is a folder to write to.
"""

from __future__ import annotations

import pyspark

HOME = "reflect('java.lang.System', 'getenv', 'HOME')"

READING = [
    "SELECT id FROM events",
    "select `e`.id from Events AS e -- a comment; DROP TABLE x",
    "WITH few AS (SELECT id FROM events LIMIT 1) SELECT * FROM few UNION ALL TABLE few",
    "SELECT * FROM events e LEFT JOIN deliveries d ON e.id = d.id",
    "SELECT id FROM events WHERE id IN (SELECT id FROM events) AND EXISTS (SELECT 1)",
    "SELECT id, x FROM events LATERAL VIEW explode(array(1)) t AS x",
    "SELECT id FROM events, LATERAL explode(array(1))",
    "SELECT id, row_number() OVER w FROM events WINDOW w AS (ORDER BY id)",
    "SELECT event_key, count(*) FILTER (WHERE true) FROM events GROUP BY CUBE(event_key, id)",
    "SELECT id FROM events GROUP BY ALL HAVING count(*) > 0 ORDER BY 1 LIMIT 2 OFFSET 0",
    "SELECT transform(array(1), x -> x + 1), get_json_object(data_json, '$.a') FROM events",
    "SELECT CAST(1 AS STRING), extract(YEAR FROM created_at), uuid() FROM events",
    "FROM events |> WHERE true |> SELECT id",
    "SELECT * FROM (VALUES (1), (2)) AS t(x)",
    "SELECT * FROM range(2)",
]
if not pyspark.__version__.startswith("4.0."):  # it cannot run these
    READING.extend(
        [
            "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 2) TABLE t",
            "SELECT id FROM events QUALIFY row_number() OVER (ORDER BY id) < 9",
        ]
    )

DOING_MORE = [
    # Java, and files, by functions; wherever an expression can be
    f"SELECT {HOME}",
    "SELECT `java_method`('java.lang.System', 'getenv', 'HOME')",
    "SELECT TRY_REFLECT('java.lang.System', 'getenv', 'HOME')",
    f"SELECT system.builtin.{HOME}",
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'getenv', 'HOME')",
    f"SELECT id FROM events WHERE {HOME} = 'x'",
    f"SELECT id FROM events ORDER BY {HOME}",
    f"SELECT count(*) FILTER (WHERE {HOME} = 'x') FROM events",
    f"SELECT sum(1) OVER (PARTITION BY {HOME}) FROM events",
    f"SELECT filter(array(1), x -> {HOME} = x)",
    f"SELECT (SELECT max({HOME}) FROM events)",
    f"WITH q AS (SELECT {HOME}) SELECT * FROM q",
    f"SELECT * FROM events WHERE EXISTS (SELECT {HOME})",
    f"SELECT * FROM events LATERAL VIEW explode(array({HOME})) t AS x",
    f"SELECT * FROM VALUES ({HOME}) AS t(x)",
    f"SELECT * FROM events a JOIN events b ON a.id = {HOME}",
    "SELECT from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '/etc/passwd'))",
    "SELECT from_avro(data_json, '{}', map('avroSchemaUrl', '/etc/passwd')) FROM events",
    "SELECT input_file_name() FROM events",
    "SELECT * FROM python_worker_logs()",
    # files, and tables of others
    "SELECT * FROM text.`/etc/passwd`",
    "SELECT * FROM IDENTIFIER('text.`/etc/passwd`')",
    "SELECT * FROM events WHERE id IN (SELECT value FROM text.`/etc/passwd`)",
    "WITH q AS (TABLE csv.`/etc/passwd`) SELECT * FROM q",
    "SELECT * FROM events LIMIT (SELECT count(*) FROM text.`/etc/passwd`)",
    "SELECT * FROM private",
    "SELECT * FROM `private`",
    "SELECT * FROM default.private",
    "SELECT * FROM global_temp.private",
    "SELECT * FROM events WITH ('path' = '/etc')",
    "SELECT * FROM STREAM events",
    "SELECT * FROM events TIMESTAMP AS OF '2020-01-01'",
    # anything but one SELECT
    "SELECT TRANSFORM(id) USING 'cat' FROM events",
    "SELECT /*+ REPARTITION(100000) */ * FROM events",
    "INSERT INTO events SELECT * FROM events",
    "INSERT OVERWRITE DIRECTORY '{folder}/out' USING parquet SELECT 1",
    "CREATE TABLE t USING parquet LOCATION '{folder}/out' AS SELECT 1",
    "CREATE TEMPORARY VIEW v AS SELECT * FROM text.`/etc/passwd`",
    "CREATE FUNCTION f AS 'x.Y' USING JAR '/x.jar'",
    "ADD JAR '/x.jar'",
    "SET spark.sql.variable.substitute = true",
    "SET VAR x = 1",
    "DECLARE VARIABLE x INT",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "BEGIN SELECT 1; SELECT 2; END",
    "CACHE TABLE events",
    "DROP VIEW events",
    "EXPLAIN SELECT 1",
    "SHOW TABLES",
    "MERGE INTO events USING deliveries ON true WHEN MATCHED THEN DELETE",
]

PREDICATES_DOING_MORE = [
    f"{HOME} = 'x'",
    f"id IN (SELECT {HOME})",
    "id IN (SELECT value FROM text.`/etc/passwd`)",
    "IDENTIFIER('reflect')('java.lang.System', 'getenv', 'HOME') = 'x'",
]
