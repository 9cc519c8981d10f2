//! Files that are configurations, and files that are none.

use super::*;
use pollux_wire::address::Qpn;

const WHOLE: &str = r#"
[interface.ib0]
device = "soft:/run/fabric@host1"
pkey = 0x8001
mode = "rc"
address = ["10.0.0.1/24", "fd00::1/64"]
router = ["10.0.0.254"]

[[interface.ib0.neighbor]]
address = "10.0.0.9"
link = "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:10:01"
"#;

fn refusal(text: &str) -> String {
    NodeConfig::read("node.toml", text).expect_err("it is refused").to_string()
}

#[test]
fn a_file_says_what_a_node_is() {
    let config = NodeConfig::read("node.toml", WHOLE).unwrap();
    let ib0 = &config.interfaces["ib0"];
    assert_eq!((ib0.pkey, ib0.mode, ib0.ipv6), (PKey(0x8001), Mode::Rc, true));
    let v6 = Prefix { ip: "fd00::1".parse().unwrap(), len: 64 };
    assert_eq!(ib0.address[1], AddressSetting::Fixed(v6));
    assert!(!ib0.asks_for_address());
    let asking = NodeConfig::read("f", &WHOLE.replace("fd00::1/64", "dhcp")).unwrap();
    let ib0 = &asking.interfaces["ib0"];
    assert_eq!((ib0.fixed_addresses().count(), ib0.asks_for_address()), (1, true));
    let link = ib0.neighbor[0].link;
    assert_eq!((link.rc, link.qpn, link.gid.0[15]), (true, Qpn(0x48), 1));
    let least = NodeConfig::read("f", "[interface.a]\ndevice = 'mlx5_0'").unwrap();
    assert_eq!(least.interfaces["a"].pkey, PKey::DEFAULT);
}

#[test]
fn workers_have_cores_of_their_own_and_rest_as_they_are_told() {
    let workers = |text: &str| {
        let text = format!("[workers]\n{text}\n{WHOLE}");
        NodeConfig::read("node.toml", &text).map(|config| config.workers)
    };
    let none = workers("").unwrap();
    assert_eq!((none.cores.len(), none.idle), (0, Idle::Adaptive));
    let both = workers("cores = [2, 3]\nidle = \"poll\"").unwrap();
    assert_eq!((both.cores, both.idle), (vec![2, 3], Idle::Poll));
    let refusal = |text: &str| workers(text).unwrap_err().to_string();
    let twice = "node.toml:2: core 2 is listed twice; give each worker a core of its own";
    assert_eq!(refusal("cores = [2, 3, 2]"), twice);
    let said = refusal("idle = \"sleepy\"");
    assert!(said.starts_with("node.toml:2: ") && said.contains("poll, pause or adaptive"));
    assert!(refusal("core = [2]").contains("did you mean `cores`?"));
}

#[test]
fn a_misspelt_key_is_refused_with_the_nearest_known_one() {
    let misspelt = WHOLE.replace("router", "ruoter");
    let expected = "node.toml:7: unknown key `ruoter`; did you mean `router`?";
    assert_eq!(refusal(&misspelt), expected);
    let stranger = "[interface.ib0]\ndevice = 'a'\nbandwidth = 1\n";
    let said = refusal(stranger);
    assert!(said.starts_with("node.toml:3: unknown key `bandwidth`; the keys here are"), "{said}");
    assert!(refusal("[interfaces.a]").contains("did you mean `interface`"));
}

#[test]
fn a_wrong_value_is_refused_with_its_line_and_the_right_form() {
    let said = refusal(&WHOLE.replace("fd00::1/64", "fd00::1/129"));
    assert!(said.starts_with("node.toml:6: ") && said.contains("write 10.0.0.1/24"), "{said}");
    let said = refusal(&WHOLE.replace("80:00:00:48", "80:00:00"));
    assert!(said.starts_with("node.toml:11: ") && said.contains("20 bytes"), "{said}");
    assert!(refusal(&WHOLE.replace("0x8001", "0")).contains("0xffff for the default"));
    assert!(refusal("[interface.ib0]\npkey = 1").contains("device"));
    let twice = format!("{WHOLE}[interface.ib1]\ndevice = 'soft:/run/fabric@host1'\n");
    let child = NodeConfig::read("f", &twice).expect("another partition of the same port");
    assert_eq!(child.interfaces["ib1"].pkey, PKey::DEFAULT);
    let said = refusal(&format!("{twice}pkey = 1\n"));
    assert!(said.starts_with("node.toml:12: ib1 and ib0 are both at"), "{said}");
    let mixed = WHOLE.replace("pkey = 0x8001", "ipv6 = false");
    assert!(refusal(&mixed).contains("has fd00::1, but ipv6 = false"));
    let said = refusal(&WHOLE.replace("pkey = 0x8001", "mtu = 65521"));
    assert!(said.starts_with("node.toml:4: ") && said.contains("1280 to 65520"), "{said}");
    let workers = |count: &str| WHOLE.replace("pkey = 0x8001", &format!("workers = {count}"));
    assert_eq!(NodeConfig::read("f", &workers("8")).unwrap().interfaces["ib0"].workers, 8);
    for count in ["0", "9", "300"] {
        let said = refusal(&workers(count));
        assert!(said.starts_with("node.toml:4: ") && said.contains("write 1 to 8"), "{said}");
    }
    let peer = format!("{WHOLE}[[interface.ib0.peer]]\naddress = '10.0.0.7'\nmode = 'uc'\n");
    let config = NodeConfig::read("node.toml", &peer).unwrap();
    assert_eq!(config.interfaces["ib0"].peer[0].mode, Mode::Uc);
    let said = refusal(&peer.replace("mode = \"rc\"", "mode = \"ud\""));
    assert!(said.starts_with("node.toml:14: peer 10.0.0.7 wants mode uc, but ib0 has"), "{said}");
    assert!(refusal(&peer.replace("'uc'", "'tcp'")).contains("`tcp`"));
}

#[test]
fn an_error_names_the_line_of_the_key_and_of_nothing_that_looks_like_it() {
    // The cores of ib1 in a comment, a longer name with the same beginning, and values like keys.
    let text = "# cores = [2, 2] of [interface.ib1]\n[interface.ib10]\ndevice = 'soft:x@host1'\n\
                [interface.ib1]\ndevice = 'soft:x@host1'\n[workers]\ncores = [2,\n 3]\n";
    assert!(
        refusal(text).starts_with("node.toml:2: ib10 and ib1 are both at"),
        "{}",
        refusal(text)
    );
    let text = text.replacen("host1", "host2", 1);
    NodeConfig::read("node.toml", &text).expect("each has a port");
    let said = refusal(&text.replace(" 3]", " 2]"));
    assert!(said.starts_with("node.toml:8: core 2 is listed twice"), "{said}");
    let one = text.replace("[workers]", "address = ['127.0.0.1/8']\n[workers]");
    assert!(refusal(&one).starts_with("node.toml:6: ib1 cannot have 127.0.0.1/8"), "{one}");
    let machine = Machine { cores: vec![2], opens_adapters: true, lacks_gsi: |_| false };
    let config = NodeConfig::read("node.toml", &text).unwrap();
    let said = config.on(&machine, "node.toml", &text).unwrap_err().to_string();
    assert!(
        said.starts_with(
            "node.toml:8: core 3 is not available; choose cores in [workers] from [2]"
        )
    );
}

#[test]
fn an_address_that_no_host_can_have_is_refused_with_the_reason() {
    let with = |address: &str| {
        let text = format!("[interface.ib0]\ndevice = 'null:'\naddress = [{address:?}]\n");
        NodeConfig::read("node.toml", &text).map_err(|error| error.to_string())
    };
    for (address, why) in [
        ("224.0.0.1/4", "multicast"),
        ("255.255.255.255/24", "reserved, or everybody's"),
        ("240.0.0.1/8", "reserved, or everybody's"),
        ("127.0.0.1/8", "never leaves a host"),
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/24", "it is the network 10.0.0.0/24 itself"),
        ("10.0.3.255/22", "it is the broadcast address of 10.0.0.0/22"),
        ("::/64", "unspecified"),
        ("::1/128", "never leaves a host"),
        ("ff02::1/64", "multicast"),
        ("::ffff:10.0.0.1/96", "IPv4 address"),
        ("fd00::/64", "all routers of fd00::/64 have it"),
    ] {
        let said = with(address).expect_err(address);
        let whole = format!("node.toml:3: ib0 cannot have {address}: ");
        assert!(said.starts_with(&whole) && said.contains(why), "{said}");
    }
    for address in ["10.0.1.0/16", "10.0.0.0/31", "10.0.0.1/31", "10.0.0.0/32", "fd00::/127"] {
        with(address).expect(address);
    }
}

#[test]
fn what_can_be_there_once_is_refused_the_second_time() {
    let two = |one: &str, other: &str| {
        format!(
            "[interface.a]\ndevice = 'soft:f@host1'\naddress = {one}\n\
             [interface.b]\ndevice = 'soft:f@host2'\naddress = {other}\n"
        )
    };
    let said = refusal(&two("['10.0.0.1/24']", "['10.0.1.2/24', '10.0.0.1/24']"));
    assert_eq!(said, "node.toml:6: b and a both have 10.0.0.1; change one");
    let said = refusal(&two("['10.0.0.1/24', '10.0.0.1/16']", "[]"));
    assert_eq!(said, "node.toml:3: a has 10.0.0.1 twice; remove one");
    // These mean something else on every link.
    for local in ["['fe80::1/64']", "['169.254.0.1/16']"] {
        NodeConfig::read("f", &two(local, local)).expect(local);
    }
    let same_port = two("[]", "[]").replace("host2", "host1:1");
    let same_port = refusal(&same_port.replace("host1'", "host1:1'"));
    assert!(same_port.starts_with("node.toml:4: b and a are both at"), "{same_port}");
    let neighbor = |ip: &str| {
        let link = "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:10:01";
        format!("[[interface.ib0.neighbor]]\naddress = '{ip}'\nlink = '{link}'\n")
    };
    let said = refusal(&format!("{WHOLE}{}", neighbor("10.0.0.9")));
    assert_eq!(said, "node.toml:12: ib0 has the neighbor 10.0.0.9 twice; remove one");
    let said = refusal(&format!("{WHOLE}{}", neighbor("10.0.0.1")));
    assert_eq!(
        said,
        "node.toml:12: 10.0.0.1 cannot be a neighbor of ib0: ib0 itself has it; change or remove it"
    );
    let said = refusal(&format!("{WHOLE}{}", neighbor("224.0.0.9")));
    assert!(said.starts_with("node.toml:12: 224.0.0.9 cannot be a neighbor of ib0: it is a"));
    let peer = "[[interface.ib0.peer]]\naddress = '10.0.0.7'\nmode = 'uc'\n";
    let said = refusal(&format!("{WHOLE}{peer}{peer}"));
    assert_eq!(said, "node.toml:15: ib0 has the peer 10.0.0.7 twice; remove one");
    let said = refusal(&WHOLE.replace("10.0.0.254", "10.0.0.1"));
    assert_eq!(
        said,
        "node.toml:7: 10.0.0.1 cannot be a router of ib0: ib0 itself has it; change or remove it"
    );
}

#[test]
fn a_device_that_can_never_be_opened_is_refused_and_one_that_may_come_is_not() {
    let with = |device: &str| format!("[interface.ib0]\n\ndevice = {device:?}\n");
    for device in ["", "soft", "soft:", "soft:x@y:999", "soft:x@y:0", "null:1", "tap:x", "a b"] {
        let text = with(device);
        match NodeConfig::read("node.toml", &text) {
            Ok(_) => assert_eq!(device, "soft:"),
            Err(error) => {
                let said = error.to_string();
                let whole = format!("node.toml:3: {device:?} is not a device name; write soft:");
                assert!(said.starts_with(&whole), "{said}");
            }
        }
    }
    let lacks_gsi = |name: &str| name == "mlx5_0:1";
    let build = |opens_adapters| Machine { cores: Vec::new(), opens_adapters, lacks_gsi };
    let on = |device: &str, opens_adapters| {
        let config = NodeConfig::read("f", &with(device)).expect("each is a name");
        config.on(&build(opens_adapters), "node.toml", &with(device))
    };
    for device in ["soft:/nowhere@host1", "null:", "soft:"] {
        on(device, false).expect(device);
    }
    on("bogus", true).expect("an adapter may come");
    let said = on("mlx5_0:1", true).unwrap_err().to_string();
    assert!(said.starts_with("node.toml:3: mlx5_0:1: this adapter has no queue pair 1"), "{said}");
    assert!(said.contains("soft:PATH@NODE") && said.contains("RoCE"), "{said}");
    let said = on("bogus", false).unwrap_err().to_string();
    assert!(said.starts_with("node.toml:3: bogus: built without the feature `hca`"), "{said}");
    assert_eq!(
        refusal("[workers]\n"),
        "node.toml: the configuration has no interface; write [interface.ib0]"
    );
}

/// The README's table and the parser agree on the keys of each table of a file.
#[test]
fn the_readme_lists_every_key_and_no_other() {
    let readme = include_str!("../../../../README.md");
    let section = readme.split("## Configuration").nth(1).expect("it has that section");
    let section = section.split("\n## ").next().expect("it ends");
    let mut listed: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut table = "";
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let first = row.split('|').nth(1).expect("a cell").trim();
        let keys: Vec<_> = first.split(", ").map(|key| key.trim_matches('`')).collect();
        match keys[..] {
            [name] if name.starts_with('[') => table = name,
            _ => listed.entry(table).or_default().extend(keys),
        }
    }
    for (table, header) in [
        ("[workers]", "[workers]"),
        ("[interface.NAME]", "[interface.a]"),
        ("[[interface.NAME.peer]]", "[[interface.a.peer]]"),
        ("[[interface.NAME.neighbor]]", "[[interface.a.neighbor]]"),
    ] {
        let said = refusal(&format!("{header}\nxxxxxxxxxxxxxxxx = 1\n"));
        let (_, keys) = said.split_once("; the keys here are ").expect("it names all keys");
        let mut keys: Vec<_> =
            keys.split(", ").filter(|key| !["peer", "neighbor"].contains(key)).collect();
        let mut listed = listed.remove(table).expect("the README has the table");
        keys.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, keys, "{table}");
    }
    assert!(listed.is_empty(), "no tables of a file: {listed:?}");
}
