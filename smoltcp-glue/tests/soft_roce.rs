//! The examples over libibverbs: two adapters of Soft-RoCE in the virtual machine of
//! `scripts/rxe-vm`, most often with a process at each.

use pollux_referee::soft_roce;

const EXAMPLES: [&str; 6] =
    ["udp_echo", "tcp_rr", "http_server", "iperf3", "multicast", "inline_worker"];

/// Every example, behind a line with its name. A server is ended when its clients have had enough.
const COMMAND: &str = r#"
client() { "$@" || exit 1; }
for example in udp_echo tcp_rr http_server; do
    echo "== $example"
    $example rxe0 10.9.0.1/24 & server=$!
    client $example rxe1 10.9.0.2/24 10.9.0.1
    kill $server && wait $server
done
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
for example in multicast inline_worker; do
    echo "== $example"
    client $example rxe0 10.9.0.1/24 rxe1 10.9.0.2/24
done
"#;

#[test]
fn the_examples_run_on_soft_roce() {
    let built = soft_roce::built("the_examples_run_on_soft_roce", "pollux", &["--examples"]);
    let Some(built) = built else { return };
    let examples = EXAMPLES.map(|example| built.join("examples").join(example));
    let text = soft_roce::run(&examples, 300, COMMAND);
    println!("{text}");
    let said = |example: &str| {
        let part = text.split("== ").find_map(|part| part.strip_prefix(example));
        part.unwrap_or_else(|| panic!("{example} has not begun: {text}")).to_owned()
    };
    assert!(said("udp_echo\n").contains("round trip: median"), "{text}");
    assert!(said("tcp_rr\n").contains("request and response: median"), "{text}");
    assert!(said("http_server\n").contains("hello\n"), "{text}");
    assert!(said("multicast\n").contains("hello, everyone"), "{text}");
    assert!(said("inline_worker\n").contains("1000 of 1000 sockets have heard"), "{text}");
    for (mode, way) in [("rc", ""), ("ud", " -R")] {
        let stream = said(&format!("iperf3 {mode} -n 1M{way}\n"));
        assert_eq!(bytes(&stream, "sent"), Some(1 << 20), "{text}");
        assert_eq!(bytes(&stream, "received"), Some(1 << 20), "{text}");
        let datagrams = said(&format!("iperf3 {mode} -u -n 200K -b 10M{way}\n"));
        assert!(bytes(&datagrams, "received") > Some(100 << 10), "{text}");
    }
}

/// The number behind a word at the beginning of a line.
fn bytes(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(word)?.split_whitespace().next()?.parse().ok())
}
