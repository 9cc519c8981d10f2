//! The grammar of filters.
//!
//! ```text
//!   filter:    term { (and | or) term }            from left to right
//!   term:      { not } ( "(" filter ")" | primitive )
//!   primitive: [ip | ip6 | tcp | udp | ...] [src | dst | src or dst | src and dst]
//!              [host | net | port | portrange | proto] VALUE
//!              | ip | ip6 | tcp | udp | sctp | icmp | icmp6 | igmp | esp
//!              | less N | greater N
//! ```
//!
//! `&&`, `||` and `!` mean `and`, `or` and `not`. A value without qualifiers has those of the last
//! primitive with a value, as in `port 53 or 443`. If there is none, the value is a host.

use super::{SCTP, Side, Test};
use pollux_wire::ip::IpProtocol;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The maximum nesting of terms, the primitive included. It is limited because the parser recurses
/// for each.
const DEPTH_MAX: usize = 32;
/// The maximum number of primitives. It is limited because evaluation recurses for each `and` and
/// `or` of a chain.
const PRIMITIVES_MAX: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filter, character {column}: {reason}")]
pub struct FilterError {
    /// The position of the character, from 1.
    pub column: usize,
    /// The error, and usually what to write instead.
    pub reason: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Qualifiers<'a> {
    protocol: Option<&'a str>,
    side: Option<Side>,
    kind: Option<&'a str>,
}

/// A word, a parenthesis or an operator, and its byte offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token<'a> {
    text: &'a str,
    at: usize,
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    next: usize,
    depth: usize,
    primitives: usize,
    last_qualifiers: Option<Qualifiers<'a>>,
}

const PROTOCOLS: [&str; 9] = ["ip", "ip6", "tcp", "udp", "sctp", "icmp", "icmp6", "igmp", "esp"];
const NOT_A_PROTOCOL: &str =
    "not a protocol; write a number up to 255, tcp, udp, sctp, icmp, icmp6, igmp or esp";
const KINDS: [&str; 5] = ["host", "net", "port", "portrange", "proto"];

/// The test of a text; `None` if the text is empty.
pub(super) fn parse(text: &str) -> Result<Option<Test>, FilterError> {
    let tokens = tokens(text);
    if tokens.is_empty() {
        return Ok(None);
    }
    let mut parser =
        Parser { text, tokens, next: 0, depth: 0, primitives: 0, last_qualifiers: None };
    let test = parser.filter()?;
    match parser.peek() {
        None => Ok(Some(test)),
        Some(")") => Err(parser.error(")", "there is no ( before this; remove it")),
        Some(word) => Err(parser.error(word, "write `and` or `or` before this")),
    }
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.next).map(|token| token.text)
    }

    fn take(&mut self, words: &[&str]) -> Option<&'a str> {
        let word = self.peek().filter(|word| words.contains(word))?;
        self.next += 1;
        Some(word)
    }

    fn error(&self, what: &str, reason: &str) -> FilterError {
        self.error_at(self.next, what, reason)
    }

    fn error_at(&self, token: usize, what: &str, reason: &str) -> FilterError {
        let at = self.tokens.get(token).map_or(self.text.len(), |token| token.at);
        let column = self.text[..at].chars().count() + 1;
        let what =
            if what.is_empty() { "the filter ends here".into() } else { format!("{what:?}") };
        FilterError { column, reason: format!("{what}: {reason}") }
    }

    fn filter(&mut self) -> Result<Test, FilterError> {
        let mut test = self.term()?;
        loop {
            if self.take(&["and", "&&"]).is_some() {
                test = Test::And(Box::new(test), Box::new(self.term()?));
            } else if self.take(&["or", "||"]).is_some() {
                test = Test::Or(Box::new(test), Box::new(self.term()?));
            } else {
                return Ok(test);
            }
        }
    }

    fn term(&mut self) -> Result<Test, FilterError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            let word = self.peek().unwrap_or_default();
            return Err(self.error(word, "too many parentheses or negations; write fewer"));
        }
        let test = if self.take(&["not", "!"]).is_some() {
            Test::Not(Box::new(self.term()?))
        } else if self.take(&["("]).is_some() {
            let test = self.filter()?;
            if self.take(&[")"]).is_none() {
                let word = self.peek().unwrap_or_default();
                return Err(self.error(word, "a ) is missing before this"));
            }
            test
        } else {
            self.primitive()?
        };
        self.depth -= 1;
        Ok(test)
    }

    fn primitive(&mut self) -> Result<Test, FilterError> {
        self.primitives += 1;
        if self.primitives > PRIMITIVES_MAX {
            let word = self.peek().unwrap_or_default();
            return Err(
                self.error(word, "the filter is too long; write it with prefixes or ranges")
            );
        }
        if let Some(word) = self.take(&["less", "greater"]) {
            let bytes = self.number()?;
            return Ok(if word == "less" { Test::Less(bytes) } else { Test::Greater(bytes) });
        }
        let begin = self.next;
        let protocol = self.take(&PROTOCOLS);
        let side = self.side();
        let kind = self.take(&KINDS);
        let qualifiers = Qualifiers { protocol, side, kind };
        if self.next == begin {
            // A value without qualifiers.
            let last = self.last_qualifiers.unwrap_or_default();
            return self.value(last);
        }
        // A protocol without side and kind is a complete primitive.
        if side.is_none() && kind.is_none() {
            return Ok(protocol_test(protocol.unwrap_or_default()));
        }
        self.last_qualifiers = Some(qualifiers);
        self.value(qualifiers)
    }

    fn side(&mut self) -> Option<Side> {
        let first = self.take(&["src", "dst"])?;
        let (before, other) = (self.next, if first == "src" { "dst" } else { "src" });
        let joined = self.take(&["or", "and", "||", "&&"]);
        if let (Some(joined), Some(_)) = (joined, self.take(&[other])) {
            let is_either = matches!(joined, "or" | "||");
            return Some(if is_either { Side::Either } else { Side::Both });
        }
        self.next = before;
        Some(if first == "src" { Side::Source } else { Side::Destination })
    }

    /// Parses the next word as a value to which these qualifiers apply.
    fn value(&mut self, qualifiers: Qualifiers<'a>) -> Result<Test, FilterError> {
        let Qualifiers { protocol, side, kind } = qualifiers;
        let at = self.next;
        let Some(word) = self.peek() else {
            return Err(self.error("", "write a value, as in host 10.0.0.1 or port 53"));
        };
        self.next += 1;
        let wrong = |parser: &Self, reason: &str| parser.error_at(at, word, reason);
        if kind == Some("proto") && side.is_some() {
            return Err(wrong(
                self,
                "a protocol has no source or destination; write proto without src or dst",
            ));
        }
        let side = side.unwrap_or(Side::Either);
        match kind.unwrap_or("host") {
            "host" => {
                let ip: IpAddr = word.parse().map_err(|_| {
                    wrong(
                        self,
                        "neither a filter keyword nor an IP address; host names are not resolved",
                    )
                })?;
                let len = if ip.is_ipv4() { 32 } else { 128 };
                self.net(at, protocol, side, (ip, len))
            }
            "net" => {
                let net = network(word).map_err(|reason| wrong(self, &reason))?;
                self.net(at, protocol, side, net)
            }
            "proto" => {
                let number = protocol_number(word).ok_or_else(|| wrong(self, NOT_A_PROTOCOL))?;
                let version = match protocol {
                    None => None,
                    Some("ip") => Some(4),
                    Some("ip6") => Some(6),
                    Some(_) => return Err(wrong(self, "write proto after ip or ip6 only")),
                };
                Ok(Test::Protocol { version, number })
            }
            kind => {
                let (first, last) = range(word, kind).map_err(|reason| wrong(self, reason))?;
                match protocol {
                    None => Ok(Test::Port { side, protocol: None, first, last }),
                    Some("ip" | "ip6") => {
                        let version = Test::Version(if protocol == Some("ip") { 4 } else { 6 });
                        let port = Test::Port { side, protocol: None, first, last };
                        Ok(Test::And(Box::new(version), Box::new(port)))
                    }
                    Some(name @ ("tcp" | "udp" | "sctp")) => {
                        let protocol = protocol_number(name);
                        Ok(Test::Port { side, protocol, first, last })
                    }
                    Some(_) => {
                        Err(wrong(self, "this protocol has no ports; write tcp, udp or sctp"))
                    }
                }
            }
        }
    }

    fn net(
        &self,
        at: usize,
        protocol: Option<&str>,
        side: Side,
        (network, len): (IpAddr, u8),
    ) -> Result<Test, FilterError> {
        let is_of_family = match protocol {
            None => true,
            Some("ip") => network.is_ipv4(),
            Some("ip6") => network.is_ipv6(),
            Some(_) => {
                let reason = "write an address after ip, ip6, src or dst; combine it with other \
                              protocols by `and`";
                return Err(self.error_at(at, self.tokens[at].text, reason));
            }
        };
        if is_of_family {
            return Ok(Test::Net { side, network, len });
        }
        let reason = match network {
            IpAddr::V6(_) => "the address is IPv6, but `ip` means IPv4",
            IpAddr::V4(_) => "the address is IPv4, but `ip6` means IPv6",
        };
        Err(self.error_at(at, self.tokens[at].text, reason))
    }

    fn number(&mut self) -> Result<u32, FilterError> {
        let word = self.peek().unwrap_or_default();
        let number = word.parse();
        let number =
            number.map_err(|_| self.error(word, "not a number; write bytes, as in less 128"))?;
        self.next += 1;
        Ok(number)
    }
}

fn protocol_test(name: &str) -> Test {
    let of = |version, name| {
        let number = protocol_number(name).unwrap_or_default();
        Test::Protocol { version, number }
    };
    match name {
        "ip" => Test::Version(4),
        "ip6" => Test::Version(6),
        "icmp" | "igmp" => of(Some(4), name),
        "icmp6" => of(Some(6), name),
        _ => of(None, name),
    }
}

fn protocol_number(word: &str) -> Option<u8> {
    Some(match word {
        "tcp" => IpProtocol::TCP.0,
        "udp" => IpProtocol::UDP.0,
        "sctp" => SCTP,
        "icmp" => IpProtocol::ICMPV4.0,
        "icmp6" => IpProtocol::ICMPV6.0,
        "igmp" => IpProtocol::IGMP.0,
        "esp" => 50,
        number => number.parse().ok()?,
    })
}

/// Parses a network. An IPv4 network may omit bytes at the end, which are then 0. Without a prefix
/// length, the prefix consists of the bytes that are given.
fn network(word: &str) -> Result<(IpAddr, u8), String> {
    let (ip, len) = match word.split_once('/') {
        Some((ip, len)) => (ip, Some(len)),
        None => (word, None),
    };
    let not = || "not a network; write 10.0.0.0/8 or fd00::/8".to_owned();
    let (ip, default_len): (IpAddr, u8) = match ip.parse::<Ipv6Addr>() {
        Ok(ip) => (ip.into(), 128),
        Err(_) => {
            let parts: Result<Vec<u8>, _> = ip.split('.').map(str::parse).collect();
            let parts = parts.ok().filter(|parts| parts.len() <= 4).ok_or_else(not)?;
            let mut bytes = [0; 4];
            bytes[..parts.len()].copy_from_slice(&parts);
            (Ipv4Addr::from(bytes).into(), parts.len() as u8 * 8)
        }
    };
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    let len = len.map_or(Some(default_len), |len| len.parse().ok().filter(|len| *len <= bits));
    let len = len.ok_or_else(|| format!("the prefix length is from 0 to {bits}"))?;
    let has_host_bits = match ip {
        IpAddr::V4(ip) => ip.to_bits() & u32::MAX.checked_shr(len.into()).unwrap_or(0) != 0,
        IpAddr::V6(ip) => ip.to_bits() & u128::MAX.checked_shr(len.into()).unwrap_or(0) != 0,
    };
    match has_host_bits {
        true => Err("it has bits set beyond the prefix length; clear them, or write host".into()),
        false => Ok((ip, len)),
    }
}

fn range(word: &str, kind: &str) -> Result<(u16, u16), &'static str> {
    const NO_PORT: &str = "not a port; write a number up to 65535";
    const NO_RANGE: &str = "not a range of ports; write 1000-2000";
    if kind == "port" {
        return word.parse().map(|port| (port, port)).map_err(|_| NO_PORT);
    }
    let (first, last) = word.split_once('-').ok_or(NO_RANGE)?;
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok((first, last)),
        // As in libpcap, the ends may be in any order.
        (Ok(last), Ok(first)) => Ok((first, last)),
        _ => Err(NO_RANGE),
    }
}

/// Splits a text into words, parentheses and the operators `&&`, `||` and `!`.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut all = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.trim_start().chars().next() {
        rest = rest.trim_start();
        let at = text.len() - rest.len();
        let operator = ["&&", "||"].into_iter().find(|operator| rest.starts_with(operator));
        let len = match (operator, first) {
            (Some(operator), _) => operator.len(),
            (None, '(' | ')' | '!') => 1,
            _ => {
                let is_end = |one: char| one.is_whitespace() || "()!&|".contains(one);
                // A single & or | becomes a word, which the parser refuses.
                rest.find(is_end).unwrap_or(rest.len()).max(first.len_utf8())
            }
        };
        all.push(Token { text: &rest[..len], at });
        rest = &rest[len..];
    }
    all
}
