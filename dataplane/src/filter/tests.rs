//! Filters with matching and other packets, and errors with their columns. The tests of `pollux
//! capture` compare the filter with tcpdump.

use super::PacketFilter;

/// An IPv4 packet of a protocol, between 10.1.0.1:1000 and 10.2.0.2:53.
fn v4(protocol: u8, offset: u16) -> Vec<u8> {
    let mut packet = vec![0; 60];
    packet[0] = 0x45;
    packet[6..8].copy_from_slice(&offset.to_be_bytes());
    packet[9] = protocol;
    packet[12..20].copy_from_slice(&[10, 1, 0, 1, 10, 2, 0, 2]);
    packet[20..24].copy_from_slice(&[3, 0xe8, 0, 53]);
    packet
}

/// An IPv6 packet, between fd01::1 and fd02::2, with the same ports.
fn v6(next_header: u8) -> Vec<u8> {
    let mut packet = vec![0; 80];
    packet[0] = 0x60;
    packet[6] = next_header;
    (packet[8], packet[9], packet[23]) = (0xfd, 1, 1);
    (packet[24], packet[25], packet[39]) = (0xfd, 2, 2);
    packet[40..44].copy_from_slice(&[3, 0xe8, 0, 53]);
    packet
}

#[test]
fn a_filter_accepts_the_packets_that_it_describes() {
    let [tcp, udp, icmp, late] = [v4(6, 0), v4(17, 0), v4(1, 0), v4(17, 100)];
    let [tcp6, udp6, icmp6, fragment6] = [v6(6), v6(17), v6(58), v6(44)];
    let all = [&tcp, &udp, &icmp, &late, &tcp6, &udp6, &icmp6, &fragment6];
    let taken = |text: &str| -> String {
        let filter = PacketFilter::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        all.map(|packet| if filter.matches(packet, packet.len()) { '1' } else { '0' })
            .iter()
            .collect()
    };
    for (text, expected) in [
        ("", "11111111"),
        ("ip", "11110000"),
        ("ip6", "00001111"),
        ("tcp", "10001000"),
        ("udp or icmp6", "01010110"),
        ("icmp", "00100000"),
        ("host 10.2.0.2", "11110000"),
        ("src 10.2.0.2", "00000000"),
        ("dst host fd02::2", "00001111"),
        ("src and dst net 10.0.0.0/8", "11110000"),
        ("src or dst net 10.2", "11110000"),
        ("net fd01::/16", "00001111"),
        ("port 53", "11001100"),
        ("src port 53", "00000000"),
        ("udp dst port 53 or 54", "01000100"),
        ("portrange 900-1000", "11001100"),
        ("ip proto 17", "01010000"),
        ("proto udp", "01010100"),
        ("ip6 proto 44", "00000001"),
        ("not (tcp or udp)", "00100011"),
        ("! tcp && ip", "01110000"),
        ("less 60", "11110000"),
        ("greater 61", "00001111"),
        // From left to right.
        ("tcp or udp and ip6", "00001100"),
        ("tcp or (udp and ip6)", "10001100"),
    ] {
        assert_eq!(taken(text), expected, "{text}");
    }
}

#[test]
fn a_truncated_packet_fails_tests_of_missing_bytes() {
    let filter = PacketFilter::parse("udp port 53 or dst host 10.2.0.2").expect("a filter");
    let packet = v4(17, 0);
    for len in 0..packet.len() {
        assert_eq!(filter.matches(&packet[..len], packet.len()), len >= 20, "{len} bytes");
    }
}

#[test]
fn an_error_has_its_column_and_advice() {
    for (text, column, words) in [
        ("hots 10.0.0.1", 1, "\"hots\": neither a filter keyword nor"),
        ("tcp and", 8, "the filter ends here"),
        ("tcp udp", 5, "write `and` or `or` before"),
        ("(tcp or udp", 12, "a ) is missing"),
        ("tcp)", 4, "there is no ( before"),
        ("port x", 6, "write a number up to 65535"),
        ("portrange 9", 11, "write 1000-2000"),
        ("net 10.0.0.1/8", 5, "bits set beyond the prefix length"),
        ("net 10.0.0.0/33", 5, "from 0 to 32"),
        ("ip host fd00::1", 9, "is IPv6, but `ip` means IPv4"),
        ("ip6 host 10.0.0.1", 10, "is IPv4, but `ip6` means IPv6"),
        ("icmp port 5", 11, "has no ports"),
        ("less x", 6, "write bytes"),
        ("proto nothing", 7, "not a protocol"),
        ("src proto 6", 11, "write proto without src or dst"),
        ("ip dst proto tcp or udp", 14, "write proto without src or dst"),
        ("tcp & udp", 5, "write `and` or `or` before"),
        ("\u{fc} and", 1, "neither a filter keyword"),
    ] {
        let error = PacketFilter::parse(text).expect_err(text);
        assert_eq!(error.column, column, "{text}: {error}");
        assert!(error.reason.contains(words), "{text}: {error}");
    }
    let deep = "not ".repeat(1000) + "tcp";
    assert!(PacketFilter::parse(&deep).unwrap_err().reason.contains("too many parentheses"));
    let long = ["port 1"; 1000].join(" or ");
    assert!(PacketFilter::parse(&long).unwrap_err().reason.contains("too long"));
}
