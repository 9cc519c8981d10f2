//! Nodes at adapters of RoCE: two of Soft-RoCE in the virtual machine of `scripts/rxe-vm`, which
//! have no subnet manager and no queue pair 1.

use pollux_referee::soft_roce;

/// For each mode: two nodes, the longest packet of the mode between them, and what connects them.
const COMMAND: &str = r#"
cd /tmp
for mode in rc uc ud; do
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
    echo "== $mode"
    size=65492
    if [ $mode = ud ]; then size=4064; fi
    pollux ping 10.9.0.2 --size 56 --count 2 --socket 0.sock || exit 1
    pollux ping 10.9.0.2 --size $size --count 5 --socket 0.sock || exit 1
    pollux ping fd00::1 --size 1000 --count 2 --socket 1.sock || exit 1
    pollux show connections --socket 0.sock
    kill $node0 $node1
    wait
    rm -f ?.sock
done
"#;

#[test]
fn nodes_at_soft_roce_speak_all_modes() {
    let test = "nodes_at_soft_roce_speak_all_modes";
    let built = soft_roce::built(test, "pollux-appliance", &["--bin", "pollux"]);
    let Some(built) = built else { return };
    let text = soft_roce::run(&[built.join("pollux")], 300, COMMAND);
    println!("{text}");
    let parts: Vec<&str> = text.split("== ").collect();
    for (part, mode) in parts[1..].iter().zip(["rc", "uc", "ud"]) {
        let longest = part.matches(if mode == "ud" { "4072 bytes" } else { "65500 bytes" }).count();
        assert_eq!(longest, 5, "{mode}: {part}");
        let is_connected = part.contains(&format!(" {}    open ", mode.to_uppercase()));
        assert_eq!(is_connected, mode != "ud", "{mode}: {part}");
    }
    assert_eq!(parts.len(), 4, "{text}");
}
