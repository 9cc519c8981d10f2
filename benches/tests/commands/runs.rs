//! Runs that go on, and runs that are compared.

use crate::programs::{Folder, PERF, perf};
use serde_json::Value;
use std::fs;
use std::process::Command;

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

/// One run as a file, and another one whose times are more than ten times as long.
#[test]
fn a_run_has_not_moved_from_itself_and_a_slowed_one_is_named() {
    let arguments = "lat --layer tcp --sockets kernel --duration 0.02 --keep-disturbed --json";
    let run = perf(&arguments.split(' ').collect::<Vec<_>>());
    let run: Value = serde_json::from_str(&run).expect("it is JSON");
    let row = &run["rows"][0];
    assert_eq!(row["figures"].as_array().map(Vec::len), Some(7), "{run}");
    let [least, most] = [0, 1].map(|end| number(&row["estimate"]["interval"][end]));
    let median = number(&row["estimate"]["median"]);
    assert!(0.0 < least && least <= median && median <= most, "{run}");
    let mut slow = run.clone();
    let figures = row["figures"].as_array().expect("figures").iter().map(number);
    // However much the rounds differ, none of the other run is as fast as the slowest of this one.
    let slower = 10.0 * figures.fold(0.0, f64::max);
    for figure in slow["rows"][0]["figures"].as_array_mut().expect("figures") {
        *figure = (number(figure) + slower).into();
    }
    slow["rows"][0]["estimate"]["median"] = (median + slower).into();
    let folder = Folder::new();
    let files = [("run.json", &run), ("slow.json", &slow)]
        .map(|(name, record)| folder.write(name, &record.to_string()));
    let diff = |one: &str, other: &str| {
        let mut command = Command::new(PERF);
        let output = command.args(["diff", one, other]).output().expect("it runs");
        (output.status.success(), String::from_utf8(output.stdout).expect("text"))
    };
    let [run, slow] = &files;
    assert_eq!(diff(run, run), (true, "nothing moved, in 1 row\n".into()));
    let (is_fine, text) = diff(run, slow);
    assert!(!is_fine && text.starts_with("worse: lat of tcp, kernel sockets, 64 bytes"), "{text}");
    let (is_fine, text) = diff(slow, run);
    assert!(is_fine && text.starts_with("better: lat of tcp"), "{text}");
}

#[test]
fn a_campaign_goes_on_where_it_was_interrupted() {
    let folder = Folder::new();
    let [file, into] = ["campaign.toml", "run.json"].map(|name| folder.path(name));
    let campaign = |rounds: u32, sizes: &str| {
        let text = format!(
            "rounds = {rounds}\nkeep_disturbed = true\nduration = 0.01\ncores = [0, 0]\n\
             [[measure]]\nwhat = [\"lat\"]\nlayer = [\"tcp\"]\nsockets = [\"kernel\"]\n\
             size = {sizes}\n"
        );
        fs::write(&file, text).expect("it is written");
        let mut command = Command::new(PERF);
        let output = command.arg("campaign").arg(&file).arg("--into").arg(&into).output();
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let run = fs::read(&into).expect("it is written");
        let run: Value = serde_json::from_slice(&run).expect("it is JSON");
        (run["rows"].clone(), said.lines().count())
    };
    let (first, measured) = campaign(1, "[64]");
    assert_eq!(measured, 1);
    // Another round, and another size.
    let (second, measured) = campaign(2, "[64, 100]");
    assert_eq!(measured, 3);
    let outcome = |rows: &Value| rows[0]["source"]["measured"]["outcomes"][0].clone();
    assert_eq!(outcome(&second), outcome(&first));
    let rounds = |row: usize| second[row]["figures"].as_array().map(Vec::len);
    assert_eq!([rounds(0), rounds(1)], [Some(2); 2], "{second}");
    // Figures of two machines are no run.
    let text = fs::read_to_string(&into).expect("it is there");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("it is there");
    let kernel = format!("{:?}", kernel.trim());
    fs::write(&into, text.replace(&kernel, "\"another\"")).expect("it is written");
    let mut command = Command::new(PERF);
    let output = command.arg("campaign").arg(&file).arg("--into").arg(&into).output();
    let said = output.expect("it runs").stderr;
    assert!(String::from_utf8_lossy(&said).contains("another machine or kernel"));
}
