//! The examples over libibverbs: two adapters of Soft-RoCE in the virtual machine of
//! `scripts/rxe-vm`, in most tests with a process at each. A machine uses less than one processor,
//! so several run at a time.

use pollux_referee::soft_roce;

/// Runs a client, which must succeed.
const CLIENT: &str = r#"client() { "$@" || exit 1; }
"#;

/// These examples, each behind a line with its name. A server is ended when its client is done.
const COMMAND: &str = r#"
for example in udp_echo tcp_rr http_server; do
    echo "== $example"
    $example rxe0 10.9.0.1/24 & server=$!
    client $example rxe1 10.9.0.2/24 10.9.0.1
    kill $server && wait $server
done
for example in multicast inline_worker; do
    echo "== $example"
    client $example rxe0 10.9.0.1/24 rxe1 10.9.0.2/24
done
"#;

const IPERF3: &str = r#"
for mode in rc ud; do
    way=
    if [ $mode = ud ]; then way=' -R'; fi
    iperf3 rxe0 10.9.0.1/24 -m $mode >/dev/null & server=$!
    for test in '-n 1M' '-u -n 200K -b 10M'; do
        echo "== iperf3 $mode $test$way"
        client iperf3 rxe1 10.9.0.2/24 10.9.0.1 -m $mode $test$way
    done
    kill $server && wait $server
done
true
"#;

/// Runs examples by a command; returns its output. `None` if the test is skipped.
fn run(test: &str, examples: &[&str], command: &str) -> Option<String> {
    let built = soft_roce::built(test, "pollux", &["--examples"])?.join("examples");
    let examples: Vec<_> = examples.iter().map(|example| built.join(example)).collect();
    let text = soft_roce::run(&examples, 300, &format!("{CLIENT}{command}"));
    println!("{text}");
    Some(text)
}

/// The output of an example.
fn part_of<'a>(text: &'a str, example: &str) -> &'a str {
    let part = text.split("== ").find_map(|part| part.strip_prefix(example));
    part.unwrap_or_else(|| panic!("{example} has not begun: {text}"))
}

#[test]
fn the_examples_run_on_soft_roce() {
    let examples = ["udp_echo", "tcp_rr", "http_server", "multicast", "inline_worker"];
    let Some(text) = run("the_examples_run_on_soft_roce", &examples, COMMAND) else { return };
    assert!(part_of(&text, "udp_echo\n").contains("round trip: median"), "{text}");
    assert!(part_of(&text, "tcp_rr\n").contains("request and response: median"), "{text}");
    assert!(part_of(&text, "http_server\n").contains("hello\n"), "{text}");
    assert!(part_of(&text, "multicast\n").contains("hello, everyone"), "{text}");
    let inline_worker = part_of(&text, "inline_worker\n");
    assert!(inline_worker.contains("1000 of 1000 sockets have heard"), "{text}");
}

#[test]
fn iperf3_runs_on_soft_roce() {
    let Some(text) = run("iperf3_runs_on_soft_roce", &["iperf3"], IPERF3) else { return };
    for (mode, way) in [("rc", ""), ("ud", " -R")] {
        let stream = part_of(&text, &format!("iperf3 {mode} -n 1M{way}\n"));
        assert_eq!(bytes(stream, "sent"), Some(1 << 20), "{text}");
        assert_eq!(bytes(stream, "received"), Some(1 << 20), "{text}");
        let datagrams = part_of(&text, &format!("iperf3 {mode} -u -n 200K -b 10M{way}\n"));
        assert!(bytes(datagrams, "received") > Some(100 << 10), "{text}");
    }
}

/// The number behind a word at the beginning of a line.
fn bytes(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(word)?.split_whitespace().next()?.parse().ok())
}
