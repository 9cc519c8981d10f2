//! Routes that administrators add to a node that runs, and the route to an address.

use crate::router::{Net, R};
use crate::running::output_of;
use serde_json::Value;

impl Net {
    /// The lines of a command of the router that succeeds.
    fn route(&self, arguments: &str) -> Vec<String> {
        let (is_done, printed) = self.run("r", &format!("route {arguments}"));
        assert!(is_done, "{arguments}: {printed}");
        printed.lines().map(String::from).collect()
    }

    /// The error of one that fails.
    fn no_route(&self, arguments: &str) -> String {
        let (is_done, printed) = self.run("r", &format!("route {arguments}"));
        assert!(!is_done, "{arguments}: {printed}");
        printed
    }

    /// The sources of the routes to a prefix, with whether packets use them.
    fn sources(&self, to: &str) -> Vec<(String, bool)> {
        let rows = self.rows("r", "routes").into_iter().filter(|row| row["to"] == to);
        let pair =
            |row: Value| (row["source"].as_str().map(String::from), row["is_active"] == true);
        rows.map(pair).map(|(source, is_active)| (source.expect("text"), is_active)).collect()
    }
}

#[test]
fn a_route_is_added_replaced_and_removed_while_packets_flow() {
    let net = Net::new("route", &format!("{R}[router]\n"));
    net.until("a", "10.2.0.1", "ttl=63");
    net.until("a", "10.9.0.1", "destination host unreachable");
    assert_eq!(net.route("add 10.9.0.0/16 prohibit"), ["route: prohibit 10.9.0.0/16"]);
    // The reply comes when workers have the route, so the very next packet goes by it.
    assert!(net.run("a", "ping 10.9.0.1 --count 1").1.contains("packet filtered"));
    assert!(net.no_route("add 10.9.0.0/16 blackhole").contains("`pollux route replace`"));
    let replaced = net.route("replace 10.9.0.0/16 via 10.2.0.1,10.1.0.1");
    assert_eq!(replaced, ["route: 10.9.0.0/16 via 10.2.0.1, 10.1.0.1"]);
    assert_eq!(net.sources("10.9.0.0/16"), [("admin".into(), true)]);
    // A reload leaves it alone, and so does one with changes.
    std::fs::write(
        net.folder.join("r.toml"),
        format!(
            "{R}[router]\n[[route]]\nto = \"fd07::/16\"\n\
        type = \"prohibit\"\n"
        ),
    )
    .expect("it is ours");
    assert!(net.run("r", "reload").0);
    assert_eq!(net.sources("10.9.0.0/16"), [("admin".into(), true)]);
    assert_eq!(net.route("del 10.9.0.0/16"), ["route: remove 10.9.0.0/16"]);
    assert_eq!(net.sources("10.9.0.0/16"), []);
    assert!(net.no_route("del 10.9.0.0/16").contains("no route to 10.9.0.0/16 was added by"));
    assert!(
        net.no_route("del fd07::/16").contains("is of the configuration file; remove it there")
    );
}

#[test]
fn a_route_of_the_configuration_stands_back_until_the_administrator_removes_his() {
    let routes = "[router]\n[[route]]\nto = \"10.9.0.0/16\"\nvia = [\"10.2.0.1\"]\n";
    let net = Net::new("route-before", &format!("{R}{routes}"));
    net.until("a", "10.2.0.1", "ttl=63");
    assert_eq!(net.sources("10.9.0.0/16"), [("static".into(), true)]);
    let output = net.route("add 10.9.0.0/16 unreachable");
    assert_eq!(output[0], "route: unreachable 10.9.0.0/16");
    assert!(output[1].contains("10.9.0.0/16 via 10.2.0.1, of the configuration, is inactive"));
    let both = [("admin".into(), true), ("static".into(), false)];
    assert_eq!(net.sources("10.9.0.0/16"), both);
    assert!(net.run("a", "ping 10.9.0.1 --count 1").1.contains("host unreachable"));
    assert!(net.route("del 10.9.0.0/16")[1].ends_with("of the configuration, again"));
    assert_eq!(net.sources("10.9.0.0/16"), [("static".into(), true)]);
}

#[test]
fn the_route_to_an_address_is_shown_with_its_reason() {
    let net = Net::new("route-get", &format!("{R}[router]\n"));
    net.until("a", "10.2.0.1", "ttl=63");
    net.route("add 10.9.0.0/16 via 10.2.0.1,10.1.0.1");
    net.route("add blackhole 10.9.9.0/24");
    let get = |address: &str| net.route(&format!("get {address}")).join("\n");
    assert!(get("10.2.0.254").starts_with("10.2.0.254: local\n  since ib1 has this address"));
    let link = get("10.2.0.7");
    assert!(link.starts_with("10.2.0.7: forward\n  on the link of ib1\n"), "{link}");
    assert!(link.ends_with("since 10.2.0.0/24 (connected) is the longest prefix that has it"));
    let both = get("10.9.1.1");
    assert!(both.contains("  via 10.2.0.1 at ib1\n  via 10.1.0.1 at ib0\n"), "{both}");
    assert!(both.contains("(admin)") && both.contains("one of 2 next hops by its hash"), "{both}");
    assert!(get("10.9.9.1").starts_with("10.9.9.1: blackhole\n  since 10.9.9.0/24 (admin)"));
    assert_eq!(get("192.0.2.1"), "192.0.2.1: no_route\n  since no route has it");
    let row: Value = serde_json::from_str(&get("10.9.1.1 --json")).expect("it is JSON");
    assert_eq!(row["next_hops"], serde_json::json!(["10.2.0.1", "10.1.0.1"]));
    assert_eq!((&row["verdict"], &row["route"]["to"]), (&"forward".into(), &"10.9.0.0/16".into()));
}

#[test]
fn a_wrong_route_is_refused_with_the_right_form() {
    let (is_done, printed) =
        output_of(&["route", "add", "10.9.0.0/16", "via", "10.2.0", "--socket", "x"]);
    assert!(!is_done && printed.contains("\"10.2.0\" is not an IP address"), "{printed}");
    let (is_done, printed) =
        output_of(&["route", "add", "10.9.0.0/16", "to", "x", "--socket", "x"]);
    assert!(!is_done && printed.contains("write via GATEWAY[,GATEWAY], blackhole"), "{printed}");
    let (is_done, printed) = output_of(&["route", "get", "10.9.0.1"]);
    assert!(!is_done && printed.contains("--socket PATH"), "{printed}");
    let net = Net::new("route-wrong", R);
    net.until("a", "10.1.0.254", "ttl=64");
    assert!(net.no_route("add 10.9.0.1/16 blackhole").contains("write 10.9.0.0/16"));
    assert!(net.no_route("add 10.9 blackhole").contains("is not a prefix; write 10.1.0.0/16"));
}
