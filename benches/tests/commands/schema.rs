//! The schema of runs, as another library understands it.

use crate::programs::{Folder, perf, printed};
use std::process::Command;

const VALIDATE: &str = "import json, sys, jsonschema
schema, run = (json.load(open(path)) for path in sys.argv[1:])
jsonschema.Draft202012Validator.check_schema(schema)
jsonschema.validate(run, schema)
def closed(it):
    it = dict(it, additionalProperties=False) if 'properties' in it else it
    return {key: closed(value) if isinstance(value, dict) else value for key, value in it.items()}
jsonschema.validate(run, closed(schema))
del run['rows'][0]['figures']
try:
    jsonschema.validate(run, schema)
except jsonschema.ValidationError as error:
    print(error.message)
";

#[test]
fn a_run_has_what_its_schema_says_and_nothing_else() {
    let test = "a_run_has_what_its_schema_says_and_nothing_else";
    let python = "/usr/bin/python3";
    let has = Command::new(python).args(["-c", "import jsonschema"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        pollux_referee::skip(test, "there is no jsonschema (scripts/host-setup --referees)");
        return;
    }
    let folder = Folder::new();
    let schema = folder.write("schema.json", &perf(&["schema"]));
    let lat = ["lat", "--layer", "tcp", "--sockets", "kernel", "--cores", "0,0", "--rounds", "2"];
    let run = perf(&[&lat[..], &["--duration", "0.01", "--json"]].concat());
    let run = folder.write("run.json", &run);
    let output = Command::new(python).args(["-c", VALIDATE, &schema, &run]).output();
    let said = printed(&output.expect("it runs"));
    assert_eq!(said.trim(), "'figures' is a required property");
}
