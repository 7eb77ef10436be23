"""What a record's value says, as typed columns: JSON, Avro and Protobuf, by a schema of a file or
of a registry. It knows no Spark: types and columns are Arrow's.

| module | owns |
|---|---|
| `settings` | what was chosen: the encoding, where its schemas are, the framing |
| `framing` | Confluent's wire format: magic byte, schema id, indexes of a Protobuf message |
| `json_schema`, `avro`, `protobuf` | a schema: its Arrow type, and bytes to Python's values |
| `registry` | schemas by id and by subject, through Confluent's client |
| `types` | types that fit several versions of a schema, and a table |
| `convert` | a value into a type, or why not |
| `column` | a column of values into `value_decoded` and `decode_error` |
"""
