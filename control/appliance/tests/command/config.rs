//! What a node is configured to be, before and while it runs: `pollux check`, `pollux config show`.

use crate::nodes::{Node, interface};
use crate::running::{Running, output_of};
use serde_json::Value;

/// A configuration with a key of each table.
const FILE: &str = "[workers]\nidle = \"pause\"\n[interface.ib0]\ndevice = \"DEVICE\"\n\
    mode = \"auto\"\nmtu = 9000\naddress = [\"10.0.0.1/24\", \"fd00::1/64\"]\n\
    router = [\"10.0.0.254\"]\n\
    [[interface.ib0.peer]]\naddress = \"10.0.0.7\"\nmode = \"ud\"\n\
    [[interface.ib0.neighbor]]\naddress = \"10.0.0.9\"\n\
    link = \"80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:10:01\"\n\
    [router]\n[[route]]\nto = \"10.1.0.0/16\"\nvia = [\"10.0.0.2\", \"10.0.0.3\"]\n\
    [[route]]\nto = \"fd01::/64\"\ntype = \"prohibit\"\n";

/// The findings of `pollux check --json`, and whether the file is valid.
fn check(path: &str) -> (bool, Vec<Value>) {
    let (is_accepted, printed) = output_of(&["check", path, "--json"]);
    let report: Value = serde_json::from_str(&printed).expect("it is JSON");
    assert_eq!(report["is_valid"], is_accepted, "{report}");
    (is_accepted, report["findings"].as_array().expect("a list").clone())
}

#[test]
fn the_configuration_of_a_node_is_shown_as_a_file_that_is_the_same() {
    let fabric = Running::new("config", &["--topology", "single:2"]);
    let text = FILE.replace("DEVICE", &fabric.port(1));
    let node = Node::with(&fabric, 1, &text);
    node.come_up();
    let show = |arguments: &[&str]| {
        let (is_done, printed) = node.ask(&[&["config", "show"], arguments].concat());
        assert!(is_done, "{printed}");
        printed
    };
    let (few, all) = (show(&[]), show(&["--effective"]));
    assert!(!few.contains("pkey") && all.contains("\npkey = 0xffff\n"), "{few}{all}");
    let json: Value = serde_json::from_str(&show(&["--json"])).expect("it is JSON");
    assert_eq!(json["toml"], few);
    let file = json["file"].as_str().expect("it was started with a file");
    for (name, text) in [("few.toml", few), ("all.toml", all)] {
        std::fs::write(fabric.path(name), &text).expect("it is ours");
        assert!(output_of(&["check", &fabric.path(name)]).0, "{text}");
        // A node that reads it has nothing to change.
        std::fs::copy(fabric.path(name), file).expect("it is ours");
        assert_eq!(node.ask(&["reload"]), (true, "nothing has changed\n".into()), "{text}");
        let shown = output_of(&["config", "show", &fabric.path(name), "--effective"]);
        assert_eq!(shown.1, show(&["--effective"]));
    }
    let (is_done, printed) = output_of(&["config", "show"]);
    assert!(!is_done && printed.contains("--socket"), "{printed}");
}

#[test]
fn a_check_warns_of_what_is_missing_now_and_refuses_what_is_wrong() {
    let fabric = Running::new("check", &["--topology", "single:2"]);
    let path = fabric.path("a.toml");
    let with = |text: &str| {
        std::fs::write(&path, text).expect("it is ours");
        check(&path)
    };
    let good = interface(&fabric, 1, "ib0", "10.0.0");
    assert_eq!(with(&good), (true, Vec::new()));
    let (is_valid, findings) = with(&good.replace("@host1", "@host7"));
    assert!(is_valid && findings.len() == 1, "{findings:?}");
    let place = |one: &Value| (one["severity"].clone(), one["line"].clone(), one["key"].clone());
    let warning = ("warning".into(), 2.into(), "interface.ib0.device".into());
    assert_eq!(place(&findings[0]), warning);
    assert!(findings[0]["message"].as_str().is_some_and(|it| it.contains("has no such port")));
    let (_, findings) = with(&good.replace("socket@", "nowhere@"));
    let message = findings[0]["message"].as_str().expect("text");
    assert!(message.contains("there is no fabric at") && message.contains("pollux fabric"));
    let (is_valid, findings) = with(&good.replace("address", "adress"));
    assert!(!is_valid && findings.len() == 1, "{findings:?}");
    assert_eq!(place(&findings[0]), ("error".into(), 3.into(), "interface.ib0.adress".into()));
    assert_eq!(findings[0]["column"], 1);
    let (is_valid, printed) = output_of(&["check", &path]);
    assert!(
        !is_valid && printed.contains("a.toml:3:1: unknown key `adress`; did you"),
        "{printed}"
    );
    let (is_valid, findings) = with("[workers]\ncores = [4095]\n[interface.a]\ndevice = 'null:'\n");
    assert!(!is_valid, "{findings:?}");
    assert_eq!(place(&findings[0]), ("error".into(), 2.into(), "workers.cores".into()));
}

#[test]
fn a_port_that_another_process_has_is_a_warning_and_its_own_is_none() {
    let fabric = Running::new("check-port", &["--topology", "single:2"]);
    let node = Node::start(&fabric, 1, "ud");
    node.come_up();
    assert_eq!(check(&fabric.path("node1.toml")), (true, Vec::new()));
    let copy = fabric.path("copy.toml");
    std::fs::copy(fabric.path("node1.toml"), &copy).expect("it is ours");
    let (is_valid, findings) = check(&copy);
    assert!(is_valid && findings.len() == 1, "{findings:?}");
    let message = findings[0]["message"].as_str().expect("text");
    let process = format!("process {} has host1:1 open", node.child.0.id());
    assert!(message.starts_with(&process), "{message}");
}
