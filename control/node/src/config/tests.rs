//! Valid and invalid configuration files.

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

/// Errors without their columns, a line for each.
fn text_of(errors: &ConfigErrors) -> String {
    let line = |error: &ConfigError| match &error.position {
        Some((line, ..)) => format!("{}:{line}: {}", error.file, error.reason),
        None => error.to_string(),
    };
    errors.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn refusal(text: &str) -> String {
    text_of(&NodeConfig::read("node.toml", text).expect_err("it is refused"))
}

#[test]
fn a_file_is_read_with_its_defaults() {
    let config = NodeConfig::read("node.toml", WHOLE).unwrap();
    let ib0 = &config.interfaces["ib0"];
    assert_eq!((ib0.pkey, ib0.mode, ib0.ipv6), (PKey(0x8001), Mode::Rc, true));
    let v6 = Prefix { ip: "fd00::1".parse().unwrap(), len: 64 };
    assert_eq!(ib0.address[1], AddressSetting::Fixed(v6));
    assert!(!ib0.uses_dhcp());
    let asking = NodeConfig::read("f", &WHOLE.replace("fd00::1/64", "dhcp")).unwrap();
    let ib0 = &asking.interfaces["ib0"];
    assert_eq!((ib0.fixed_addresses().count(), ib0.uses_dhcp()), (1, true));
    let link = ib0.neighbor[0].link.ipoib().expect("20 bytes");
    assert_eq!((link.rc, link.qpn, link.gid.0[15]), (true, Qpn(0x48), 1));
    let least = NodeConfig::read("f", "[interface.a]\ndevice = 'mlx5_0'").unwrap();
    assert_eq!(least.interfaces["a"].pkey, PKey::DEFAULT);
}

#[test]
fn workers_have_unique_cores_and_an_idle_strategy() {
    let workers = |text: &str| {
        let text = format!("[workers]\n{text}\n{WHOLE}");
        NodeConfig::read("node.toml", &text).map(|config| config.workers)
    };
    let none = workers("").unwrap();
    assert_eq!((none.cores.len(), none.idle), (0, Idle::Adaptive));
    let both = workers("cores = [2, 3]\nidle = \"poll\"").unwrap();
    assert_eq!((both.cores, both.idle), (vec![2, 3], Idle::Poll));
    let refusal = |text: &str| text_of(&workers(text).unwrap_err());
    let twice = "node.toml:2: core 2 is listed twice; give each worker a core of its own";
    assert_eq!(refusal("cores = [2, 3, 2]"), twice);
    let message = refusal("idle = \"sleepy\"");
    assert!(message.starts_with("node.toml:2: ") && message.contains("poll, pause or adaptive"));
    assert!(refusal("core = [2]").contains("did you mean `cores`?"));
}

#[test]
fn a_misspelt_key_is_refused_with_the_nearest_known_one() {
    let misspelt = WHOLE.replace("router", "ruoter");
    let expected = "node.toml:7: unknown key `ruoter`; did you mean `router`?";
    assert_eq!(refusal(&misspelt), expected);
    let stranger = "[interface.ib0]\ndevice = 'a'\nbandwidth = 1\n";
    let message = refusal(stranger);
    assert!(
        message.starts_with("node.toml:3: unknown key `bandwidth`; the keys here are"),
        "{message}"
    );
    assert!(refusal("[interfaces.a]").contains("did you mean `interface`"));
}

#[test]
fn a_wrong_value_is_refused_with_its_line_and_the_right_form() {
    let message = refusal(&WHOLE.replace("fd00::1/64", "fd00::1/129"));
    assert!(
        message.starts_with("node.toml:6: ") && message.contains("write 10.0.0.1/24"),
        "{message}"
    );
    let message = refusal(&WHOLE.replace("80:00:00:48", "80:00:00"));
    assert!(message.starts_with("node.toml:11: ") && message.contains("20 bytes"), "{message}");
    assert!(refusal(&WHOLE.replace("0x8001", "0")).contains("0xffff for the default"));
    assert!(refusal("[interface.ib0]\npkey = 1").contains("device"));
    let twice = format!("{WHOLE}[interface.ib1]\ndevice = 'soft:/run/fabric@host1'\n");
    let child = NodeConfig::read("f", &twice).expect("another partition of the same port");
    assert_eq!(child.interfaces["ib1"].pkey, PKey::DEFAULT);
    let message = refusal(&format!("{twice}pkey = 1\n"));
    assert!(message.starts_with("node.toml:12: ib1 and ib0 are both at"), "{message}");
    let mixed = WHOLE.replace("pkey = 0x8001", "ipv6 = false");
    assert!(refusal(&mixed).contains("has fd00::1, but ipv6 = false"));
    let message = refusal(&WHOLE.replace("pkey = 0x8001", "mtu = 65521"));
    assert!(message.starts_with("node.toml:4: ") && message.contains("1280 to 65520"), "{message}");
    let workers = |count: &str| WHOLE.replace("pkey = 0x8001", &format!("workers = {count}"));
    assert_eq!(NodeConfig::read("f", &workers("8")).unwrap().interfaces["ib0"].workers, 8);
    for count in ["0", "9", "300"] {
        let message = refusal(&workers(count));
        assert!(
            message.starts_with("node.toml:4: ") && message.contains("write 1 to 8"),
            "{message}"
        );
    }
    let peer = format!("{WHOLE}[[interface.ib0.peer]]\naddress = '10.0.0.7'\nmode = 'uc'\n");
    let config = NodeConfig::read("node.toml", &peer).unwrap();
    assert_eq!(config.interfaces["ib0"].peer[0].mode, Mode::Uc);
    let message = refusal(&peer.replace("mode = \"rc\"", "mode = \"ud\""));
    assert!(
        message.starts_with("node.toml:14: peer 10.0.0.7 wants mode uc, but ib0 has"),
        "{message}"
    );
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
    let message = refusal(&text.replace(" 3]", " 2]"));
    assert!(message.starts_with("node.toml:8: core 2 is listed twice"), "{message}");
    let one = text.replace("[workers]", "address = ['127.0.0.1/8']\n[workers]");
    assert!(refusal(&one).starts_with("node.toml:6: ib1 cannot have 127.0.0.1/8"), "{one}");
    let machine = Machine { cores: vec![2], opens_adapters: true };
    let config = NodeConfig::read("node.toml", &text).unwrap();
    let message = text_of(&machine.check(&config).in_file("node.toml", &text).unwrap_err());
    assert!(
        message.starts_with(
            "node.toml:8: core 3 is not available; choose cores in [workers] from [2]"
        )
    );
}

#[test]
fn an_address_that_no_host_can_have_is_refused_with_the_reason() {
    let with = |address: &str| {
        let text = format!("[interface.ib0]\ndevice = 'null:'\naddress = [{address:?}]\n");
        NodeConfig::read("node.toml", &text).map_err(|error| text_of(&error))
    };
    for (address, why) in [
        ("224.0.0.1/4", "multicast"),
        ("255.255.255.255/24", "reserved or the broadcast address"),
        ("240.0.0.1/8", "reserved or the broadcast address"),
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
        let message = with(address).expect_err(address);
        let expected = format!("node.toml:3: ib0 cannot have {address}: ");
        assert!(message.starts_with(&expected) && message.contains(why), "{message}");
    }
    for address in ["10.0.1.0/16", "10.0.0.0/31", "10.0.0.1/31", "10.0.0.0/32", "fd00::/127"] {
        with(address).expect(address);
    }
}

#[test]
fn duplicates_are_refused() {
    let two = |one: &str, other: &str| {
        format!(
            "[interface.a]\ndevice = 'soft:f@host1'\naddress = {one}\n\
             [interface.b]\ndevice = 'soft:f@host2'\naddress = {other}\n"
        )
    };
    let message = refusal(&two("['10.0.0.1/24']", "['10.0.1.2/24', '10.0.0.1/24']"));
    assert_eq!(message, "node.toml:6: b and a both have 10.0.0.1; change one");
    let message = refusal(&two("['10.0.0.1/24', '10.0.0.1/16']", "[]"));
    assert_eq!(message, "node.toml:3: a has 10.0.0.1 twice; remove one");
    // Link-local addresses may occur once on each link.
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
    let message = refusal(&format!("{WHOLE}{}", neighbor("10.0.0.9")));
    assert_eq!(message, "node.toml:12: ib0 has the neighbor 10.0.0.9 twice; remove one");
    let message = refusal(&format!("{WHOLE}{}", neighbor("10.0.0.1")));
    assert_eq!(
        message,
        "node.toml:12: 10.0.0.1 cannot be a neighbor of ib0: ib0 itself has it; change or remove it"
    );
    let message = refusal(&format!("{WHOLE}{}", neighbor("224.0.0.9")));
    assert!(message.starts_with("node.toml:12: 224.0.0.9 cannot be a neighbor of ib0: it is a"));
    let peer = "[[interface.ib0.peer]]\naddress = '10.0.0.7'\nmode = 'uc'\n";
    let message = refusal(&format!("{WHOLE}{peer}{peer}"));
    assert_eq!(message, "node.toml:15: ib0 has the peer 10.0.0.7 twice; remove one");
    let message = refusal(&WHOLE.replace("10.0.0.254", "10.0.0.1"));
    assert_eq!(
        message,
        "node.toml:7: 10.0.0.1 cannot be a router of ib0: ib0 itself has it; change or remove it"
    );
}

#[test]
fn invalid_devices_are_refused_and_absent_ones_are_not() {
    let with = |device: &str| format!("[interface.ib0]\n\ndevice = {device:?}\n");
    for device in ["soft", "soft:", "soft:x@y:999", "soft:x@y:0", "null:1", "tap:x", "a b"] {
        let text = with(device);
        match NodeConfig::read("node.toml", &text) {
            Ok(_) => assert_eq!(device, "soft:"),
            Err(error) => {
                let message = text_of(&error);
                let expected = format!("node.toml:3: {device:?} is not a device name; write soft:");
                assert!(message.starts_with(&expected), "{message}");
            }
        }
    }
    let build = |opens_adapters| Machine { cores: Vec::new(), opens_adapters };
    let on = |device: &str, opens_adapters| {
        let config = NodeConfig::read("f", &with(device)).expect("each is a name");
        build(opens_adapters).check(&config).in_file("node.toml", &with(device))
    };
    for device in ["soft:/nowhere@host1", "null:", "soft:"] {
        on(device, false).expect(device);
    }
    on("bogus", true).expect("an adapter may come");
    let message = text_of(&on("bogus", false).unwrap_err());
    assert!(
        message.starts_with("node.toml:3: bogus:1: built without the feature `hca`"),
        "{message}"
    );
    assert_eq!(
        refusal("[workers]\n"),
        "node.toml: the configuration has no interface; write [interface.ib0]"
    );
}

#[test]
fn a_port_may_have_a_management_with_a_name_of_its_own() {
    let with =
        |value: &str| format!("[interface.ib0]\ndevice = 'soft:x@h'\nmanagement = {value}\n");
    let config = NodeConfig::read("f", &with("'umad:ibsim0'")).expect("a name");
    let management = config.interfaces["ib0"].management.as_ref();
    assert_eq!(management.map(Management::port), Some("ibsim0:1"));
    let machine = Machine { cores: Vec::new(), opens_adapters: false };
    let message =
        text_of(&machine.check(&config).in_file("f", &with("'umad:ibsim0'")).unwrap_err());
    assert!(message.starts_with("f:3: ibsim0:1: built without the feature `hca`"), "{message}");
    for wrong in ["'ibsim0'", "'gsi'", "'umad:'", "'umad:a:0'", "'umad:a:1:2'", "''"] {
        let message = refusal(&with(wrong));
        assert!(
            message.starts_with("node.toml:3: ") && message.contains("write umad:NAME"),
            "{message}"
        );
    }
    let misspelled = with("'umad:ibsim0'").replace("management", "managment");
    assert!(refusal(&misspelled).ends_with("did you mean `management`?"), "{misspelled}");
    let other = "[interface.ib1]\ndevice = 'soft:x@h'\npkey = 0x8001\n";
    let both = |other: &str| format!("{}{other}", with("'umad:ibsim0:1'"));
    let message = refusal(&both(other));
    assert!(message.contains("ib0 and ib1 are both at \"soft:x@h\", but differ in management"));
    let same = format!("{other}management = 'umad:ibsim0'\n");
    NodeConfig::read("f", &both(&same)).expect("the same management");
}

#[test]
fn two_names_of_a_port_are_one_port() {
    let text = "[interface.ib0]\ndevice = 'mlx5_0'\nmanagement = 'umad:ibsim0'\n\
                [interface.ib1]\ndevice = 'mlx5_0:1'\npkey = 0x8001\n";
    let message = refusal(text);
    assert!(message.contains("are both at \"mlx5_0:1\", but differ in management"), "{message}");
    let config = NodeConfig::read("f", &format!("{text}management = 'umad:ibsim0'\n"));
    let devices = config.expect("the same management").interfaces.into_values();
    assert_eq!(devices.map(|one| one.device).collect::<Vec<_>>(), ["mlx5_0:1"; 2]);
    let message = refusal(&text.replace("'mlx5_0:1'", "'verbs:mlx5_0'"));
    let expected = "node.toml:5: ib0 and ib1 are both at mlx5_0:1, one of them by `verbs:`";
    assert!(message.starts_with(expected), "{message}");
}

#[test]
fn a_domain_exists_and_addresses_are_unique_in_it() {
    let text = "[domain.red]\nkernel_table = 100\n[router]\nkernel_table = 254\n\
                [interface.a]\ndevice = 'soft:f@host1'\naddress = ['10.0.0.1/24']\n\
                [interface.b]\ndevice = 'soft:f@host2'\ndomain = 'red'\naddress = ['10.0.0.1/24']\n\
                [[route]]\nto = '10.2.0.0/16'\nnext_domain = 'red'\n\
                [[route]]\ndomain = 'red'\nto = '10.2.0.0/16'\nvia = ['10.0.0.9']\n";
    let config = NodeConfig::read("f", text).expect("an address may be in two domains");
    assert_eq!(config.interfaces["a"].domain, DEFAULT_DOMAIN);
    assert_eq!(config.domains["red"].kernel_table, Some(100));
    let message = refusal(&text.replace("domain = 'red'\naddress", "address"));
    assert_eq!(message, "node.toml:9: b and a both have 10.0.0.1; change one".replace('9', "10"));
    let message = refusal(&text.replacen("domain = 'red'\n", "domain = 'rad'\n", 1));
    let expected = "b names the domain \"rad\", which does not exist; did you mean \"red\"?";
    assert_eq!(message, format!("node.toml:10: {expected}"));
    let message = refusal(&text.replace("next_domain = 'red'", "next_domain = 'customers'"));
    let expected = "names the domain \"customers\", which does not exist; write [domain.customers]";
    assert_eq!(message, format!("node.toml:14: the route to 10.2.0.0/16 {expected}"));
    let message = refusal(&text.replace("next_domain = 'red'", "next_domain = 'default'"));
    assert!(message.ends_with("leads from default into default; remove the key"), "{message}");
    let message = refusal(&text.replace("= 254", "= 100"));
    assert!(
        message.ends_with("red and default both have the kernel's table 100; change one"),
        "{message}"
    );
    let message = refusal(&text.replace("[domain.red]", "[domain.default]"));
    assert!(message.contains("the default domain has no table"), "{message}");
    let twice =
        format!("{text}[[route]]\ndomain = 'red'\nto = '10.2.0.0/16'\nvia = ['10.0.0.8']\n");
    assert!(refusal(&twice).contains("there are two routes to 10.2.0.0/16"), "{}", refusal(&twice));
}

#[test]
fn a_rule_can_match_packets_and_a_list_exists() {
    let with = |rule: &str| {
        format!(
            "[[acl.web]]\naction = 'deny'\n{rule}\n\
             [interface.a]\ndevice = 'null:'\nacl_in = 'web'\nacl_out = 'web'\nrpf = 'strict'\n"
        )
    };
    let rule = |text: &str| NodeConfig::read("f", &with(text)).expect(text).acls["web"][0].clone();
    let text =
        "protocol = 'tcp'\nsource = '10.0.0.0/8'\ndestination_port = '1024-2047'\nsource_port = 7";
    assert_eq!(rule(text).to_string(), "tcp from 10.0.0.0/8 from port 7 to port 1024-2047");
    assert_eq!(rule("protocol = 'icmpv6'\nicmp_type = 128").to_string(), "icmpv6 type 128");
    assert_eq!(rule("protocol = 47\ndestination = 'fd00::/8'").to_string(), {
        "protocol 47 to fd00::/8"
    });
    assert_eq!(rule("").to_string(), "any");
    for (text, line, reason) in [
        ("source = '10.0.0.1/8'", 3, "10.0.0.1/8 has host bits; write 10.0.0.0/8"),
        ("destination_port = 80", 3, "destination_port needs protocol = \"tcp\" or \"udp\""),
        ("icmp_type = 8\nprotocol = 'udp'", 3, "icmp_type needs protocol = \"icmp\" or"),
        ("protocol = 'sctp'", 3, "not a protocol; write tcp, udp, icmp, icmpv6, or 0 to 255"),
        ("protocol = 256", 3, "not a protocol; write tcp"),
        ("protocol = 'udp'\nsource_port = '9-8'", 4, "not a port or range; write 80"),
        ("protocol = 'icmp'\nsource = 'fd00::/8'", 2, "has conditions of IPv4 and of IPv6"),
        ("sourc = '10.0.0.0/8'", 3, "unknown key `sourc`; did you mean `source`?"),
    ] {
        let message = refusal(&with(text));
        assert!(
            message.starts_with(&format!("node.toml:{line}: ")) && message.contains(reason),
            "{message}"
        );
    }
    let message = refusal(&with("").replace("acl_out = 'web'", "acl_out = 'webb'"));
    let expected = "a names the list \"webb\", which does not exist; write [[acl.webb]]";
    assert_eq!(message, format!("node.toml:7: {expected}"));
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
        ("[router]", "[router]"),
        ("[domain.NAME]", "[domain.a]"),
        ("[[acl.NAME]]", "[[acl.a]]"),
        ("[[route]]", "[[route]]"),
        ("[[multicast]]", "[[multicast]]"),
        ("[telemetry]", "[telemetry]"),
    ] {
        let message = refusal(&format!("{header}\nxxxxxxxxxxxxxxxx = 1\n"));
        let (_, keys) = message.split_once("; the keys here are ").expect("it names all keys");
        let mut keys: Vec<_> =
            keys.split(", ").filter(|key| !["peer", "neighbor"].contains(key)).collect();
        let mut listed = listed.remove(table).expect("the README has the table");
        keys.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, keys, "{table}");
    }
    assert!(listed.is_empty(), "no tables of a file: {listed:?}");
}

#[test]
fn a_tun_device_has_the_name_of_its_interface_and_keys_of_its_own() {
    let config = NodeConfig::read(
        "f",
        "[interface.tun0]\nkind = \"tun\"\naddress = [\"192.168.0.1/24\"]\n\
         kernel_address = [\"192.168.0.2/24\", \"fd00::2/64\"]\n\
         [interface.b]\nkind = \"tun\"\ndevice = \"tun1\"\n",
    )
    .expect("a configuration");
    let [tun0, other] = ["tun0", "b"].map(|name| &config.interfaces[name]);
    assert_eq!((tun0.kind, tun0.device.as_str()), (InterfaceKind::Tun, "tun0"));
    assert_eq!((other.device.as_str(), other.mtu), ("tun1", 65520));
    let kernel: Vec<_> = tun0.kernel_address.iter().map(ToString::to_string).collect();
    assert_eq!(kernel, ["192.168.0.2/24", "fd00::2/64"]);
}

#[test]
fn invalid_tun_interfaces_are_refused() {
    let of = |keys: &str| refusal(&format!("[interface.tun0]\nkind = \"tun\"\n{keys}\n"));
    for (keys, message) in [
        ("mode = \"rc\"", "node.toml:3: tun0 has kind \"tun\", which has no key `mode`; remove it"),
        ("pkey = 0x8001", "node.toml:3: tun0 has kind \"tun\", which has no key `pkey`; remove it"),
        (
            "shadow = \"x\"",
            "node.toml:3: tun0 has kind \"tun\", which has no key `shadow`; remove it",
        ),
        ("device = \"no/name\"", "is no name of a network device"),
        ("address = [\"dhcp\"]", "which has no DHCP; write its address"),
        (
            "kernel_address = [\"10.0.0.1\"]",
            "node.toml:3: \"10.0.0.1\" is not an address with a prefix",
        ),
        ("kernel_address = [\"10.0.0.0/24\"]", "it is the network 10.0.0.0/24 itself"),
        (
            "kernel_address = [\"10.0.0.1/24\", \"10.0.0.1/16\"]",
            "the kernel_address 10.0.0.1 twice",
        ),
        ("address = [\"10.0.0.1/24\"]\nkernel_address = [\"10.0.0.1/24\"]", "tun0 itself has it"),
        ("[interface.b]\nkind = \"tun\"\ndevice = \"tun0\"", "both have the device \"tun0\""),
    ] {
        let refused = of(keys);
        assert!(refused.contains(message), "{keys}: {refused}");
    }
    let message =
        refusal("[interface.ib0]\nkernel_address = [\"10.0.0.1/24\"]\ndevice = \"soft:\"\n");
    assert!(
        message.contains("ib0 has kind \"ipoib\", which has no key `kernel_address`"),
        "{message}"
    );
    let message = refusal("[interface.ib0]\n");
    assert!(message.starts_with("node.toml:1: ib0 has no device; write device = "), "{message}");
    let message = refusal("[interface.ib0]\npkey = 1\ndevice = \"\"\n");
    assert!(message.starts_with("node.toml:3: ib0 has no device; write device = "), "{message}");
}
