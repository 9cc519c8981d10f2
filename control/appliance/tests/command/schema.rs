//! What `pollux show --json` prints is what the JSON schema promises (`control/node/schema`).

use crate::nodes::{Node, interface};
use crate::running::Running;
use serde_json::{Map, Value};

const SCHEMA: &str = include_str!("../../../node/schema/reply.json");

/// The schema of replies. It fails at keywords that it does not know, and at fields without a
/// schema.
pub struct Schema(Value);

impl Schema {
    pub fn new() -> Self {
        Self(serde_json::from_str(SCHEMA).expect("it is JSON"))
    }

    /// Checks the reply of a table.
    pub fn check(&self, table: &str, value: &Value) {
        let schema = &self.0["properties"][table];
        assert!(schema.is_object(), "the schema has no {table}");
        self.validate(schema, value).unwrap_or_else(|why| panic!("{table}: {why}: {value}"));
    }

    fn validate(&self, schema: &Value, value: &Value) -> Result<(), String> {
        let schema = schema.as_object().ok_or("a schema that is no object")?;
        for (keyword, argument) in schema {
            self.apply(schema, keyword, argument, value)?;
        }
        Ok(())
    }

    fn apply(
        &self,
        schema: &Map<String, Value>,
        keyword: &str,
        argument: &Value,
        value: &Value,
    ) -> Result<(), String> {
        let is_met = match keyword {
            "description" | "format" | "title" | "additionalProperties" => true,
            "$ref" => {
                let path = argument.as_str().and_then(|it| it.strip_prefix('#')).expect("ours");
                return self.validate(self.0.pointer(path).expect("it is there"), value);
            }
            "type" => match argument {
                Value::Array(kinds) => kinds.iter().any(|kind| is_of(kind, value)),
                kind => is_of(kind, value),
            },
            "const" => argument == value,
            "enum" => argument.as_array().is_some_and(|all| all.contains(value)),
            "minimum" => value.is_null() || value.as_f64() >= argument.as_f64(),
            "maximum" => value.is_null() || value.as_f64() <= argument.as_f64(),
            "oneOf" | "anyOf" => {
                let all = argument.as_array().expect("it is a list").iter();
                let count = all.filter(|one| self.validate(one, value).is_ok()).count();
                count == 1 || keyword == "anyOf" && count > 0
            }
            "items" => {
                let items = value.as_array().into_iter().flatten();
                return items.into_iter().try_for_each(|item| self.validate(argument, item));
            }
            "required" => {
                let names = argument.as_array().expect("it is a list").iter();
                let mut names = names.filter_map(Value::as_str);
                names.all(|name| value.get(name).is_some())
            }
            "properties" => return self.properties(schema, argument, value),
            _ => return Err(format!("unknown keyword {keyword}")),
        };
        if is_met { Ok(()) } else { Err(format!("{keyword} {argument} is not met by {value}")) }
    }

    fn properties(
        &self,
        schema: &Map<String, Value>,
        properties: &Value,
        value: &Value,
    ) -> Result<(), String> {
        let others = schema.get("additionalProperties").filter(|others| others.is_object());
        value.as_object().into_iter().flatten().try_for_each(|(name, field)| {
            let schema = properties.get(name).or(others);
            let schema = schema.ok_or_else(|| format!("no schema of the field {name}"))?;
            self.validate(schema, field).map_err(|why| format!("{name}: {why}"))
        })
    }
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str().expect("a name") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type {other}"),
    }
}

#[test]
fn all_tables_have_the_rows_that_the_schema_says() {
    let schema = Schema::new();
    let wire = "switch1:9=udp:127.0.0.1:0,any";
    let arguments = ["--topology", "single:2", "--wire", wire, "--fault", "host2:1/loss=1ppm"];
    let fabric = Running::new("schema", &arguments);
    let both = |host| {
        let missing = "[interface.ib9]\ndevice = \"soft:/nowhere@host1\"\n";
        interface(&fabric, host, "ib0", "10.0.0") + "mode = \"rc\"\n" + missing
    };
    let nodes = [1, 2].map(|host| Node::with(&fabric, host, &both(host)));
    nodes.iter().for_each(Node::come_up);
    nodes[0].reach("10.0.0.2", "60000");
    for table in ["interfaces", "neighbors", "connections", "groups", "workers", "drops"] {
        let rows = nodes[0].show(table);
        assert!(rows.as_array().is_some_and(|rows| !rows.is_empty()), "{table}");
        schema.check(table, &rows);
    }
    for table in ["nodes", "ports", "links", "groups"] {
        let (is_ok, rows) = fabric.ask(&["show", table, "--json"]);
        assert!(is_ok, "{rows}");
        let rows: Value = serde_json::from_str(&rows).expect("it is JSON");
        assert!(rows.as_array().is_some_and(|rows| !rows.is_empty()), "{table}");
        schema.check(table, &rows);
    }
}

#[test]
fn a_reply_that_is_not_of_the_schema_is_found() {
    let schema = Schema::new();
    let row = r#"{"interface":"ib0","of":"arp","why":"runt","usual":false,"count":1}"#;
    let check = |row: &str| {
        let rows: Value = serde_json::from_str(&format!("[{row}]")).expect("it is JSON");
        schema.validate(&schema.0["properties"]["drops"], &rows)
    };
    assert_eq!(check(row), Ok(()));
    for (part, other) in
        [("1}", "-1}"), ("1}", "\"1\"}"), (",\"why\":\"runt\"", ""), ("1}", "1,\"x\":1}")]
    {
        assert!(check(&row.replace(part, other)).is_err(), "{other} for {part}");
    }
}
