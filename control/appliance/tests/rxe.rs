//! Nodes at adapters of RoCE: two of Soft-RoCE in the virtual machine of `scripts/rxe-vm`, which
//! have no subnet manager and no queue pair 1. Each mode has a machine of its own: one keeps less
//! than one processor busy.

use pollux_referee::soft_roce;

/// Two nodes, the longest packet of their mode between them, and what connects them.
const COMMAND: &str = r#"
cd /tmp
for n in 0 1; do
    cat >$n.toml <<EOF
[interface.ib$n]
device = "rxe$n"
address = ["10.9.0.$((n + 1))/24", "fd00::$((n + 1))/64"]
mode = "$mode"
EOF
    pollux run $n.toml --socket $n.sock &
    eval "node$n=$!"
done
up() { pollux show interfaces --socket $1.sock 2>/dev/null | grep -q ' up '; }
tries=0
until up 0 && up 1; do
    [ $((tries += 1)) -lt 300 ] || exit 1
    sleep 0.1
done
pollux ping 10.9.0.2 --size 56 --count 2 --socket 0.sock || exit 1
pollux ping 10.9.0.2 --size $size --count 5 --socket 0.sock || exit 1
pollux ping fd00::1 --size 1000 --count 2 --socket 1.sock || exit 1
pollux show connections --socket 0.sock
kill $node0 $node1
wait
"#;

fn nodes_speak(test: &str, mode: &str, longest: usize) {
    if !soft_roce::is_there(test) {
        return;
    }
    // Ping's size does not count the 8 bytes of ICMP's header.
    let command = format!("mode={mode} size={}\n{COMMAND}", longest - 8);
    let text = soft_roce::run(&[env!("CARGO_BIN_EXE_pollux")], 300, &command);
    println!("{text}");
    assert_eq!(text.matches(&format!("{longest} bytes")).count(), 5, "{text}");
    let is_connected = text.contains(&format!(" {}    open ", mode.to_uppercase()));
    assert_eq!(is_connected, mode != "ud", "{text}");
}

#[test]
fn nodes_at_soft_roce_speak_by_reliable_connections() {
    nodes_speak("nodes_at_soft_roce_speak_by_reliable_connections", "rc", 65_500);
}

#[test]
fn nodes_at_soft_roce_speak_by_unreliable_connections() {
    nodes_speak("nodes_at_soft_roce_speak_by_unreliable_connections", "uc", 65_500);
}

#[test]
fn nodes_at_soft_roce_speak_by_datagrams() {
    nodes_speak("nodes_at_soft_roce_speak_by_datagrams", "ud", 4072);
}
