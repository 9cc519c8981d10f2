//! The README's table of costs.

use crate::programs::perf;
use std::path::Path;

#[test]
fn the_readmes_table_is_that_of_its_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let run = root.join("benches/costs.json").display().to_string();
    let table = perf(&["report", &run, "--format", "markdown"]);
    let readme = std::fs::read_to_string(root.join("README.md")).expect("it is there");
    assert!(readme.contains(table.trim_end()), "run scripts/readme-costs");
}
