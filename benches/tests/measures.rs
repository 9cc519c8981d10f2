//! Short measurements by the command. The figures are not judged, but they must be consistent with
//! each other and with the time.

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

/// How long each measurement takes, in seconds.
const DURATION: f64 = 0.05;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn outcome(arguments: &str) -> Value {
    let arguments = format!("{arguments} --duration {DURATION} --rounds 1 --json");
    let report = perf(&arguments).unwrap_or_else(|error| panic!("{arguments}: {error}"));
    assert!(report["environment"]["cpu"].is_string(), "{report}");
    report["rows"][0]["source"]["measured"]["outcomes"][0]["outcome"].clone()
}

#[test]
fn latency_figures_of_every_layer_are_consistent() {
    if !has_cores("latency_figures_of_every_layer_are_consistent") {
        return;
    }
    for ends in ["", " --processes"] {
        for layer in ["verbs --transport rc", "verbs --transport ud", "udp --transport uc", "tcp"] {
            let report = outcome(&format!("lat --layer {layer} --size 100{ends}"));
            let latency = &report["latency"];
            let of = |key: &str| number(&latency[key]);
            let percentiles = latency["percentiles"].as_array().expect("there are some");
            let values: Vec<f64> = percentiles.iter().map(|one| number(&one["ns"])).collect();
            assert!(values.len() == 7 && values.is_sorted(), "{report}");
            // The histogram keeps three digits.
            assert!(0.0 < of("min_ns") && of("min_ns") <= values[0], "{report}");
            assert!(values[6] <= of("max_ns") * 1.001, "{report}");
            // A round trip begins where the one before ended, so all together they take the time
            // that was measured, and one more at most; what is printed is half of each.
            let seconds = of("samples") * of("mean_ns") * 2.0 / 1e9;
            let last = of("max_ns") * 2.0 / 1e9;
            assert!((DURATION * 0.999..(DURATION + last) * 1.001).contains(&seconds), "{report}");
            // Half of them took the median or longer.
            let at_least = (of("samples") / 2.0).floor() * values[0] * 2.0 / 1e9;
            assert!(at_least <= seconds * 1.001, "{report}");
        }
    }
}

#[test]
fn an_open_loop_has_as_many_samples_as_fell_due() {
    if !has_cores("an_open_loop_has_as_many_samples_as_fell_due") {
        return;
    }
    let report = outcome("lat --rate 1000");
    // The last one is due at the end of the twentieth of a second or just before.
    let samples = report["latency"]["samples"].as_u64();
    assert!(samples.is_some_and(|samples| (50..=51).contains(&samples)), "{report}");
}

#[test]
fn one_way_messages_are_counted_at_the_receiver() {
    if !has_cores("one_way_messages_are_counted_at_the_receiver") {
        return;
    }
    for command in [
        "bw --size 1048576 --processes",
        "rate --processes",
        "rate --layer udp --processes",
        "rate --transport ud",
        "bw --layer tcp --size 100000",
    ] {
        let report = outcome(command);
        let one_way = &report["one_way"];
        let [rate, sent, lost] = ["per_second", "sent", "lost"].map(|key| number(&one_way[key]));
        // The messages of the measured time, which is at least `DURATION`, are part of all received
        // ones.
        assert!(rate > 0.0 && rate * DURATION <= sent - lost, "{command}: {report}");
        if !command.contains("ud") {
            assert_eq!(lost, 0.0, "{command}: {report}");
        }
    }
}

/// All payloads are checked, so that a message in a wrong slot is an error.
#[test]
fn queue_pairs_are_used_as_it_is_said() {
    if !has_cores("queue_pairs_are_used_as_it_is_said") {
        return;
    }
    for how in [
        "rate -q 7",
        "rate -q 100 -c ud",
        "rate -q 3 -b --processes",
        "rate -t 1",
        "rate -l 5 -Q 7 -t 16 -q 2",
        "rate -I 64",
        "bw -q 3 --op write -s 5000 -Q 1",
        "bw -q 3 --op read -s 5000 -t 9 --processes",
        "rate -q 3 --op atomic -s 8 -l 1",
        "rate -e --processes",
    ] {
        let one_way = &outcome(how)["one_way"];
        assert!(number(&one_way["per_second"]) > 0.0, "{how}: {one_way}");
        if !how.contains("ud") {
            assert_eq!(number(&one_way["lost"]), 0.0, "{how}: {one_way}");
        }
    }
    for how in ["lat -q 7", "lat -q 3 -c ud -e", "lat -I 0", "lat -s 100 -I 188 --processes"] {
        assert!(number(&outcome(how)["latency"]["samples"]) >= 1.0, "{how}");
    }
    for how in ["lat --op write -q 3", "lat --op write -q 3 --unchecked", "lat --op read -q 3"] {
        assert!(number(&outcome(how)["latency"]["samples"]) >= 1.0, "{how}");
    }
}

/// In an open loop the sender catches up, however late it is.
#[test]
fn a_stream_at_a_rate_has_as_many_messages_as_fell_due() {
    if !has_cores("a_stream_at_a_rate_has_as_many_messages_as_fell_due") {
        return;
    }
    for how in ["rate", "rate --layer udp", "rate -q 3 --op write"] {
        let one_way = &outcome(&format!("{how} --rate 1000"))["one_way"];
        let [sent, lost, late] = ["sent", "lost", "late_max_ns"].map(|key| number(&one_way[key]));
        // Those of the warm-up of 0.1 s, too.
        assert!(sent >= 150.0 && lost == 0.0 && late >= 0.0, "{how}: {one_way}");
    }
}

/// A stream of bytes has no end of a message in which to catch up.
#[test]
fn bytes_at_a_rate_come_no_sooner() {
    if !has_cores("bytes_at_a_rate_come_no_sooner") {
        return;
    }
    let one_way = &outcome("bw --layer tcp --size 100 --rate 1000")["one_way"];
    let [rate, lost, late] = ["per_second", "lost", "late_max_ns"].map(|key| number(&one_way[key]));
    // Those that were late come at once.
    assert!(rate > 0.0 && rate * DURATION <= 100.0 * (52.0 + late * 1e-6), "{one_way}");
    assert_eq!(lost, 0.0, "{one_way}");
}

/// What is fetched and what is left in memory is checked at both ends.
#[test]
fn operations_on_the_memory_of_the_other_end_are_measured() {
    if !has_cores("operations_on_the_memory_of_the_other_end_are_measured") {
        return;
    }
    for ends in ["", " --processes"] {
        for op in ["write --size 1", "write --size 5000", "read --size 5000", "atomic --size 8"] {
            for unchecked in ["", " --unchecked"] {
                let latency = &outcome(&format!("lat --op {op}{ends}{unchecked}"))["latency"];
                assert!(number(&latency["samples"]) >= 1.0 && number(&latency["min_ns"]) > 0.0);
                let one_way = &outcome(&format!("rate --op {op}{ends}{unchecked}"))["one_way"];
                assert!(number(&one_way["per_second"]) > 0.0, "{op}: {one_way}");
                assert_eq!(number(&one_way["lost"]), 0.0, "{op}: {one_way}");
            }
        }
    }
    let uc = &outcome("lat --op write -c UC -s 100")["latency"];
    assert!(number(&uc["samples"]) >= 1.0);
}

#[test]
fn messages_both_ways_are_counted_at_their_receivers() {
    if !has_cores("messages_both_ways_are_counted_at_their_receivers") {
        return;
    }
    for transport in ["rc", "ud"] {
        for command in ["bw -b --size 2000", "rate -b --processes", "rate -b --unchecked"] {
            let one_way = &outcome(&format!("{command} --transport {transport}"))["one_way"];
            let [rate, sent, lost] =
                ["per_second", "sent", "lost"].map(|key| number(&one_way[key]));
            assert!(rate > 0.0 && rate * DURATION <= sent - lost, "{command}: {one_way}");
            if transport == "rc" {
                assert_eq!(lost, 0.0, "{command}: {one_way}");
            }
        }
    }
}

#[test]
fn connections_are_made_and_ended() {
    if !has_cores("connections_are_made_and_ended") {
        return;
    }
    for layer in ["verbs", "verbs -c uc", "verbs --processes --size 100000", "tcp"] {
        let connections = &outcome(&format!("connect --layer {layer}"))["connections"];
        assert!(number(&connections["per_second"]) > 0.0, "{layer}: {connections}");
        let is_of_verbs = layer.starts_with("verbs");
        assert_eq!(connections["first_ns"].is_f64(), is_of_verbs, "{layer}: {connections}");
    }
}

/// Also those of the kernel, which every machine has.
#[test]
fn programs_are_measured_on_sockets_of_each_kind() {
    for sockets in ["inline", "pinned", "kernel"] {
        for ends in ["", " --processes"] {
            let lat = format!("lat --layer tcp --sockets {sockets} --size 5000{ends}");
            let latency = &outcome(&lat)["latency"];
            assert!(number(&latency["samples"]) >= 1.0 && number(&latency["min_ns"]) > 0.0);
            let connect = format!("connect --layer tcp --sockets {sockets} --size 5000{ends}");
            let connections = &outcome(&connect)["connections"];
            assert!(number(&connections["per_second"]) > 0.0, "{connections}");
            assert!(number(&connections["first_ns"]) > 0.0, "{connections}");
        }
    }
}

#[test]
fn a_storm_is_as_large_as_wanted_and_every_request_is_refused() {
    if !has_cores("a_storm_is_as_large_as_wanted_and_every_request_is_refused") {
        return;
    }
    let run = |seconds| {
        let command = format!("isolation --rounds 1 --duration {seconds} --rate 2000 --json");
        let report = perf(&command).expect("it runs");
        let keys = ["requests", "refusals", "tables"];
        let rates = keys.map(|key| number(&report[format!("{key}_per_second")]));
        (report, rates)
    };
    let mut measured = run("0.3");
    if measured.1[2] == 0.0 {
        // On a busy machine the download of one table takes longer than 0.3 s.
        measured = run("5");
    }
    let (report, [requests, refusals, tables]) = measured;
    assert!(requests > 0.0 && requests <= 2100.0 && tables > 0.0, "{report}");
    // The last ones may be under way.
    assert!(refusals > 0.0 && refusals <= requests, "{report}");
    for row in report["rows"].as_array().expect("there are some") {
        let [quiet, storm] = ["quiet", "storm"].map(|key| number(&row[key]["median"]));
        let ratio = number(&row["storm_to_quiet"]["median"]);
        assert!((ratio * quiet / storm - 1.0).abs() < 1e-6, "{report}");
    }
}

#[test]
fn two_workers_are_compared_with_one() {
    if !has_cores("two_workers_are_compared_with_one") {
        return;
    }
    let report = perf("scaling --rounds 1 --duration 0.05 --json").expect("it runs");
    let rows = report["rows"].as_array().expect("there are some");
    assert_eq!(rows.len(), 2, "{report}");
    for row in rows {
        let [one, two, ratio] = ["one", "two", "ratio"].map(|key| number(&row[key]["median"]));
        assert!(one > 0.0 && (ratio * one / two - 1.0).abs() < 1e-6, "{report}");
    }
}

#[test]
fn forwarding_is_measured_at_each_size_and_number_of_routes() {
    let report = perf(
        "forward --core 0 --routes 1,100 --flows 50 --size 64,1500 --rounds 1 \
                     --duration 0.02 --json",
    )
    .expect("it runs");
    let rows = report["rows"].as_array().expect("there are some");
    let plans: Vec<_> = rows.iter().map(|row| &row["plan"]).collect();
    let of = |key: &str| plans.iter().map(|plan| plan[key].as_u64()).collect::<Vec<_>>();
    assert_eq!(of("bytes"), [64, 64, 1500, 1500].map(Some), "{report}");
    assert_eq!(of("routes"), [1, 100, 1, 100].map(Some), "{report}");
    assert!(rows.iter().all(|row| number(&row["rate"]["median"]) > 0.0), "{report}");
}

#[test]
fn a_router_is_a_layer_of_its_own() {
    let one_way = &outcome("rate --layer forward --routes 100 --flows 50 --cores 0,0")["one_way"];
    assert!(number(&one_way["per_second"]) > 0.0, "{one_way}");
    let refusal = |arguments: &str| perf(arguments).expect_err("it is refused");
    assert!(refusal("rate --layer forward").contains("needs --routes"));
    assert!(refusal("lat --layer forward --routes 7").contains("is for rate"));
    assert!(refusal("rate --routes 7").contains("are for --layer forward"));
    assert!(refusal("rate --layer forward --routes 7 -s 20").contains("write --size 40"));
    let elsewhere = "rate --layer forward --routes 7 --connect 127.0.0.1:1";
    assert!(refusal(elsewhere).contains("has no other end"));
}

#[test]
fn forwarding_under_load_has_consistent_figures() {
    let arguments = "forward --rfc2544 --core 0 --routes 1,100 --duration 0.02 --queue 4096 --json";
    let report = perf(arguments).expect("it runs");
    let rows = report["rows"].as_array().expect("there are some");
    assert_eq!(rows.len(), 2, "{report}");
    for row in rows {
        let [max, lossless, lossy, burst] =
            ["rate_max", "throughput", "throughput_lossy", "back_to_back"]
                .map(|key| number(&row[key]));
        assert!(0.0 <= lossless && lossless <= lossy && lossy <= max && max > 0.0, "{report}");
        assert!(burst >= 1.0, "{report}");
        for (part, latency) in [1.0, 0.5].into_iter().zip(row["latency"].as_array().expect("two")) {
            let of = |key: &str| number(&latency[key]);
            assert!((of("per_second") - lossless * part).abs() < 1.0, "{report}");
            // The histogram keeps three digits.
            assert!(of("min") <= of("median") * 1.001, "{report}");
            assert!(of("median") <= of("p99_9") && of("p99_9") <= of("max") * 1.001, "{report}");
        }
    }
}

#[test]
fn an_impossible_measurement_is_refused_with_advice() {
    let refusal = |arguments: &str| perf(arguments).expect_err("it is refused");
    assert!(refusal("rate --layer tcp").contains("write bw"));
    assert!(refusal("lat --cores 0,999").contains("there is no core 999"));
    assert!(refusal("forward --routes 0").contains("write 1 to 2000000"));
    assert!(refusal("lat --size many").contains("sweep"));
    assert!(refusal("lat --op atomic").contains("write --size 8"));
    assert!(refusal("lat --op read -c ud").contains("only --transport rc can read"));
    assert!(refusal("lat --op write --layer tcp").contains("--layer verbs"));
    assert!(refusal("lat --bidirectional").contains("bw and rate of sends"));
    assert!(refusal("rate -t 16 -l 16 -Q 16").contains("write a larger --tx-depth"));
    assert!(refusal("lat -I 4000").contains("--inline-size: up to"));
    assert!(refusal("lat -s 64,4096 -c ud").contains("above the maximum here, 2048"));
    assert!(refusal("lat --sockets kernel -d soft:x --peer soft:y").contains("uses no --device"));
    assert!(refusal("scaling --cores 0,0").contains("two workers need two cores"));
    assert!(refusal("serve --device soft:/nowhere/x@host1").contains("pollux fabric --socket"));
    assert!(refusal("connect -c ud").contains("datagrams have no connections"));
    assert!(refusal("connect --rate 7").contains("--rate is for lat, bw and rate"));
    let nowhere = "lat --device soft:/nowhere/x@host1 --peer soft:/nowhere/x@host2";
    assert!(refusal(nowhere).contains("pollux fabric --socket /nowhere/x"));
}
