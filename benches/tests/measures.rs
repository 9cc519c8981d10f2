//! The command, asked to measure something for a moment. What it measures is not judged.

use serde_json::Value;
use std::process::Command;

fn perf(arguments: &str) -> Result<Value, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollux-perf"));
    let output = command.args(arguments.split(' ')).output().expect("it runs");
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).expect("it is JSON")),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Whether the two ends can have a core each.
fn has_cores(test: &str) -> bool {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        println!("SKIP {test}: there are not two cores");
    }
    cores >= 2
}

fn outcome(arguments: &str) -> Value {
    let arguments = format!("{arguments} --duration 0.05 --json");
    let said = perf(&arguments).unwrap_or_else(|error| panic!("{arguments}: {error}"));
    assert!(said["environment"]["cpu"].is_string(), "{said}");
    said["measured"][0]["outcome"].clone()
}

#[test]
fn latency_of_every_layer() {
    if !has_cores("latency_of_every_layer") {
        return;
    }
    for ends in ["", " --processes"] {
        for way in ["verbs --transport rc", "verbs --transport ud", "udp --transport uc", "tcp"] {
            let said = outcome(&format!("lat --layer {way} --size 100{ends}"));
            let latency = &said["latency"];
            assert!(latency["samples"].as_u64().is_some_and(|samples| samples > 0), "{said}");
            let percentiles = latency["percentiles"].as_array().expect("there are some");
            let values: Vec<f64> =
                percentiles.iter().map(|one| one[1].as_f64().expect("a number")).collect();
            assert!(values.len() == 7 && values.is_sorted() && values[0] > 0.0, "{said}");
        }
    }
}

#[test]
fn an_open_loop_has_as_many_samples_as_fell_due() {
    if !has_cores("an_open_loop_has_as_many_samples_as_fell_due") {
        return;
    }
    let said = outcome("lat --rate 1000");
    // The last one is due at the end of the twentieth of a second or just before.
    let samples = said["latency"]["samples"].as_u64();
    assert!(samples.is_some_and(|samples| (50..=51).contains(&samples)), "{said}");
}

#[test]
fn what_is_sent_one_way_is_counted_where_it_comes() {
    if !has_cores("what_is_sent_one_way_is_counted_where_it_comes") {
        return;
    }
    for way in [
        "bw --size 1048576 --processes",
        "rate --processes",
        "rate --layer udp --processes",
        "rate --transport ud",
        "bw --layer tcp --size 100000",
    ] {
        let said = outcome(way);
        let one_way = &said["one_way"];
        assert!(one_way["per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{way}: {said}");
        let (sent, lost) = (one_way["sent"].as_u64(), one_way["lost"].as_u64());
        assert!(sent > lost, "{way}: {said}");
        if !way.contains("ud") {
            assert_eq!(lost, Some(0), "{way}: {said}");
        }
    }
}

#[test]
fn connections_are_made_and_ended() {
    if !has_cores("connections_are_made_and_ended") {
        return;
    }
    for layer in ["verbs", "tcp"] {
        let said = outcome(&format!("connect --layer {layer}"));
        let rate = said["connections"]["per_second"].as_f64();
        assert!(rate.is_some_and(|rate| rate > 0.0), "{layer}: {said}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_advice() {
    let refusal = |arguments: &str| perf(arguments).expect_err("it is refused");
    assert!(refusal("rate --layer tcp").contains("write bw"));
    assert!(refusal("lat --cores 0,999").contains("there is no core 999"));
    assert!(refusal("lat --size many").contains("sweep"));
    let nowhere = "lat --device soft:/nowhere/x@host1 --peer soft:/nowhere/x@host2";
    assert!(refusal(nowhere).contains("pollux fabric --socket /nowhere/x"));
}
