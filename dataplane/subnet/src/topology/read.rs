//! Topologies from a file, in the format of `ibnetdiscover` output or of `ibsim` input.
//!
//! A record has the attributes of a node, the line of the node, and a line for each linked port:
//!
//! ```text
//! switchguid=0x200000(200000)
//! Switch  8 "S-0000000000200000"      # "leaf" base port 0 lid 2 lmc 0
//! [1]     "H-0000000000100000"[1](100001)     # "host" lid 1 4xEDR
//! ```
//!
//! LIDs, rates and descriptions follow a `#`, and are read if they have this form; other text
//! behind a `#` is a comment. A link may be in the record of one of its nodes, or in both. A link
//! may name a node before the record of that node.
//!
//! A dump made with `2>&1` begins with warnings of the tool, so lines before the first line of the
//! format are skipped ([`preamble`]). All further lines must have the format, so that a misspelled
//! line is an error.

use super::guid_of;
use super::{End, LinkRate, NODES_MAX, PORTS_MAX, PlannedNode, Problem, Topology, TopologyError};
use pollux_wire::address::{Guid, Lid};
use pollux_wire::mad::smp::NodeType;
use std::collections::BTreeMap;

impl Topology {
    /// Parses a file; `file` is its name in errors. GUIDs that are not in the file are derived from
    /// `seed`.
    pub fn read(file: &str, text: &str, seed: u64) -> Result<Self, TopologyError> {
        let mut reader = Reader { file, seed, ..Reader::default() };
        let skipped = preamble(text).last().map_or(0, |(number, _)| *number);
        for (i, line) in text.lines().enumerate().skip(skipped) {
            reader.line_number = i + 1;
            reader.line(line)?;
        }
        reader.finish()
    }
}

/// The lines that precede the topology in a file and are not part of it, with their numbers. Empty
/// if no topology follows them.
pub fn preamble(text: &str) -> Vec<(usize, &str)> {
    let lines = || (1..).zip(text.lines()).filter(|(_, line)| !is_passed_over(line));
    let first = lines().position(|(_, line)| has_format(line));
    lines().take(first.unwrap_or(0)).collect()
}

/// Whether a line is blank, a comment or a heading.
fn is_passed_over(line: &str) -> bool {
    let first = split_comment(line).0.split_whitespace().next();
    first.is_none_or(|word| ["Non-Chassis", "Chassis"].contains(&word))
}

/// Whether a line looks like a node, a port or an attribute, valid or not.
fn has_format(line: &str) -> bool {
    let code = split_comment(line).0.trim();
    let first = code.split_whitespace().next().unwrap_or("");
    let is_attribute = || {
        code.split_once('=').is_some_and(|(key, _)| key.chars().all(|c| c.is_ascii_alphanumeric()))
    };
    node_type(first).is_some() || code.starts_with('[') && code.contains('"') || is_attribute()
}

fn node_type(word: &str) -> Option<NodeType> {
    match word {
        "Switch" => Some(NodeType::SWITCH),
        "Ca" | "Hca" => Some(NodeType::CHANNEL_ADAPTER),
        "Rt" | "Router" => Some(NodeType::ROUTER),
        _ => None,
    }
}

#[derive(Default)]
struct Reader<'a> {
    file: &'a str,
    seed: u64,
    line_number: usize,
    /// The attributes read so far for the next node.
    attributes: Attributes,
    topology: Topology,
    /// Indexes of nodes by name.
    names: BTreeMap<&'a str, u32>,
    links: Vec<WrittenLink<'a>>,
}

#[derive(Default)]
struct Attributes {
    guid: Option<Guid>,
    system_image_guid: Option<Guid>,
    port_guid: Option<Guid>,
    vendor_id: u32,
    device_id: u16,
}

/// A link, as written in the record of one of its nodes.
struct WrittenLink<'a> {
    line_number: usize,
    from: End,
    to_name: &'a str,
    to_port: u8,
    rate: Option<LinkRate>,
}

type Result<T, E = TopologyError> = std::result::Result<T, E>;

impl<'a> Reader<'a> {
    fn wrong(&self, word: &str, problem: Problem) -> TopologyError {
        self.wrong_at(self.line_number, word, problem)
    }

    fn wrong_at(&self, line: usize, word: &str, problem: Problem) -> TopologyError {
        TopologyError::new(&format!("{}:{line}", self.file), word, problem)
    }

    fn line(&mut self, line: &'a str) -> Result<()> {
        if is_passed_over(line) {
            return Ok(());
        }
        let (code, comment) = split_comment(line);
        let code = code.trim();
        let first = code.split_whitespace().next().unwrap_or("");
        match node_type(first) {
            Some(kind) => self.node(kind, code[first.len()..].trim_start(), comment),
            None if code.starts_with('[') => self.port(code, comment),
            None => self.attribute(code),
        }
    }

    fn attribute(&mut self, code: &str) -> Result<()> {
        let (key, value) =
            code.split_once('=').ok_or_else(|| self.wrong(code, Problem::UnknownLine))?;
        let mut value = value.trim();
        let mut own = std::mem::take(&mut self.attributes);
        match key.trim() {
            "vendid" => own.vendor_id = self.hex(value)? as u32,
            "devid" => own.device_id = self.hex(value)? as u16,
            "sysimgguid" => own.system_image_guid = Some(Guid(self.hex(value)?)),
            "caguid" | "switchguid" | "rtguid" => {
                if let Some((node, port)) = value.split_once('(') {
                    own.port_guid = Some(Guid(self.hex(port.trim_end_matches(')'))?));
                    value = node;
                }
                own.guid = Some(Guid(self.hex(value)?));
            }
            _ => return Err(self.wrong(key, Problem::UnknownLine)),
        }
        self.attributes = own;
        Ok(())
    }

    /// `8 "S-0000000000200000"`
    fn node(&mut self, kind: NodeType, code: &'a str, comment: &'a str) -> Result<()> {
        let (count, rest) = code.split_once(char::is_whitespace).unwrap_or((code, ""));
        let limits = Problem::Number { min: 1, max: PORTS_MAX.into() };
        let count = count.parse::<u8>().ok().filter(|count| (1..=PORTS_MAX).contains(count));
        let count = count.ok_or_else(|| self.wrong(code, limits))?;
        let (name, _) = self.quoted(rest.trim_start())?;
        let index = self.topology.nodes.len();
        if index == NODES_MAX {
            return Err(self.wrong(name, Problem::TooManyNodes));
        }
        if self.names.insert(name, index as u32).is_some() {
            return Err(self.wrong(name, Problem::SameName));
        }
        let own = std::mem::take(&mut self.attributes);
        let written = own.guid.or_else(|| guid_in_name(name));
        let guid = written.unwrap_or_else(|| guid_of(self.seed, index));
        let description = comment.split('"').nth(1).unwrap_or(name);
        let mut node = PlannedNode::new(kind, description.into(), guid, count);
        node.system_image_guid = own.system_image_guid.unwrap_or(guid);
        (node.vendor_id, node.device_id) = (own.vendor_id, own.device_id);
        if kind == NodeType::SWITCH {
            let words = behind_quotes(comment);
            (node.ports[0].lid, node.ports[0].lmc) = (lid_in(words), lmc_in(words));
            node.ports[0].guid = own.port_guid.unwrap_or(guid);
        }
        self.topology.nodes.push(node);
        Ok(())
    }

    /// `[1](100004) "S-0000000000200001"[1]`, at a switch `[1] "H-0000000000100003"[1](100004)`
    fn port(&mut self, code: &'a str, comment: &'a str) -> Result<()> {
        let node = self.topology.nodes.len().checked_sub(1);
        let node = node.ok_or_else(|| self.wrong(code, Problem::PortWithoutNode))?;
        let (port, rest) = self.bracketed(code)?;
        let Some(own) = self.topology.nodes[node].ports.get(usize::from(port)).filter(|_| port > 0)
        else {
            return Err(self.wrong(code, Problem::UnknownPort));
        };
        let (mut own, rest) = (*own, skip_brackets(rest));
        let (guid, rest) = parenthesized(rest);
        if let Some(guid) = guid {
            own.guid = Guid(self.hex(guid)?);
        }
        let (to_name, rest) = self.quoted(rest.trim_start())?;
        let (to_port, rest) = self.bracketed(rest)?;
        let rest = parenthesized(skip_brackets(rest)).1.trim();
        let rate = if let Some(width) = rest.strip_prefix("w=") {
            let rate = LinkRate::default().with_width(width);
            Some(rate.ok_or_else(|| self.wrong(rest, Problem::Rate))?)
        } else if rest.is_empty() {
            rate_in(comment)
        } else {
            return Err(self.wrong(rest, Problem::TrailingText));
        };
        if self.topology.nodes[node].kind != NodeType::SWITCH {
            let words = comment.split('"').next().unwrap_or("");
            (own.lid, own.lmc) = (lid_in(words), lmc_in(words));
        }
        self.topology.nodes[node].ports[usize::from(port)] = own;
        let from = End { node: node as u32, port };
        self.links.push(WrittenLink {
            line_number: self.line_number,
            from,
            to_name,
            to_port,
            rate,
        });
        Ok(())
    }

    /// Joins the links that were read, once all nodes are known.
    fn finish(mut self) -> Result<Topology> {
        for link in std::mem::take(&mut self.links) {
            let wrong = |problem| self.wrong_at(link.line_number, link.to_name, problem);
            let &node = self.names.get(link.to_name).ok_or_else(|| wrong(Problem::UnknownNode))?;
            let to = End { node, port: link.to_port };
            let ports = &self.topology.nodes[node as usize].ports;
            if to.port == 0 || usize::from(to.port) >= ports.len() {
                return Err(wrong(Problem::UnknownPort));
            }
            let peers = [link.from, to].map(|end| self.topology.peer(end).map(|(peer, _)| peer));
            match peers {
                [None, None] if link.from != to => {
                    self.topology.join([link.from, to], link.rate.unwrap_or_default());
                }
                [Some(peer), Some(_)] if peer == to => {}
                _ => return Err(wrong(Problem::LinkedTwice)),
            }
        }
        self.check_guids()?;
        if self.topology.nodes.is_empty() {
            return Err(self.wrong("", Problem::Empty));
        }
        Ok(self.topology)
    }

    fn check_guids(&self) -> Result<()> {
        let mut seen = BTreeMap::new();
        for (name, &index) in &self.names {
            let guid = self.topology.nodes[index as usize].guid;
            if seen.insert(guid, name).is_some() {
                return Err(self.wrong(name, Problem::SameGuid));
            }
        }
        Ok(())
    }

    fn hex(&self, word: &str) -> Result<u64> {
        let digits = word.trim().trim_start_matches("0x");
        u64::from_str_radix(digits, 16)
            .map_err(|_| self.wrong(word, Problem::Expected("a hexadecimal number")))
    }

    /// The name in quotes at the front of `code`, and the rest.
    fn quoted<'b>(&self, code: &'b str) -> Result<(&'b str, &'b str)> {
        let name = code.strip_prefix('"').and_then(|rest| rest.split_once('"'));
        let named = name.filter(|(name, _)| !name.is_empty());
        named.ok_or_else(|| self.wrong(code, Problem::Expected("a node's name in double quotes")))
    }

    /// The number in brackets at the front of `code`, and the rest.
    fn bracketed<'b>(&self, code: &'b str) -> Result<(u8, &'b str)> {
        let inner = code.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let parsed = inner.and_then(|(number, rest)| Some((number.trim().parse().ok()?, rest)));
        let limits = Problem::Expected("a port number from 1 to 254 in brackets");
        parsed.ok_or_else(|| self.wrong(code, limits))
    }
}

/// The text before and behind the first `#` that is not within quotes.
fn split_comment(line: &str) -> (&str, &str) {
    let mut is_quoted = false;
    let at = line.find(|c| {
        is_quoted ^= c == '"';
        c == '#' && !is_quoted
    });
    at.map_or((line, ""), |at| (&line[..at], &line[at + 1..]))
}

/// Skips brackets such as `[ext 12]`, which follow port numbers in dumps of chassis.
fn skip_brackets(code: &str) -> &str {
    let inner = code.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    inner.map_or(code, |(_, rest)| rest)
}

fn parenthesized(code: &str) -> (Option<&str>, &str) {
    let inner = code.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    inner.map_or((None, code), |(inner, rest)| (Some(inner), rest))
}

fn behind_quotes(comment: &str) -> &str {
    comment.rsplit('"').next().unwrap_or("")
}

fn number_in(words: &str, key: &str) -> Option<u16> {
    let mut words = words.split_whitespace();
    words.find(|word| *word == key)?;
    words.next()?.parse().ok()
}

fn lid_in(words: &str) -> Lid {
    number_in(words, "lid").map(Lid).filter(|lid| lid.is_unicast()).unwrap_or(Lid::NONE)
}

fn lmc_in(words: &str) -> u8 {
    number_in(words, "lmc").filter(|lmc| *lmc < 8).unwrap_or(0) as u8
}

fn rate_in(comment: &str) -> Option<LinkRate> {
    behind_quotes(comment).split_whitespace().last()?.parse().ok()
}

/// The GUID in a name of `ibnetdiscover`, such as `H-0002c90300001000`.
fn guid_in_name(name: &str) -> Option<Guid> {
    let digits = name.get(2..).filter(|digits| digits.len() == 16)?;
    let is_kind = ["S-", "H-", "R-"].contains(&name.get(..2)?);
    u64::from_str_radix(digits, 16).ok().filter(|_| is_kind).map(Guid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::mad::smp::LinkWidth;
    use proptest::prelude::*;

    /// A dump of a chassis with all elements of the format.
    const DUMP: &str = r#"
#
# Topology file: of a rack
Chassis 1 (guid 0x8f10400410015)
vendid=0x2c9
devid=0xd2f0
sysimgguid=0x200009
switchguid=0x200000(200007)
Switch	36 "S-0000000000200000"		# "leaf # one" enhanced port 0 lid 2 lmc 1
[1]	"H-0000000000100000"[1](100001) 		# "host one HCA-1" lid 1 4xHDR
[36][ext 12]	"S-0000000000200001"[3][ext 4]		# "spine" lid 3 12xFDR

Non-Chassis Nodes
Switch	8 "S-0000000000200001"		# "spine" base port 0 lid 3 lmc 0

vendid=0x2c9
caguid=0x100000
Ca	2 "H-0000000000100000"		# "host one HCA-1"
[1](100011) 	"S-0000000000200000"[1]		# lid 1 lmc 2 "leaf # one" lid 2 4xHDR
"#;

    #[test]
    fn everything_in_a_dump_is_read() {
        let topology = Topology::read("dump", DUMP, 0).unwrap();
        let [leaf, spine, host] = topology.nodes() else { panic!("three nodes") };
        assert_eq!((leaf.kind, leaf.num_ports()), (NodeType::SWITCH, 36));
        assert_eq!(
            (leaf.name.as_str(), leaf.vendor_id, leaf.device_id),
            ("leaf # one", 0x2c9, 0xd2f0)
        );
        assert_eq!((leaf.guid, leaf.system_image_guid), (Guid(0x20_0000), Guid(0x20_0009)));
        assert_eq!((leaf.ports[0].guid, leaf.ports[0].lid), (Guid(0x20_0007), Lid(2)));
        assert_eq!((leaf.ports[0].lmc, spine.ports[0].lid), (1, Lid(3)));
        assert_eq!((spine.guid, spine.vendor_id), (Guid(0x20_0001), 0));
        assert_eq!(
            (host.ports[1].guid, host.ports[1].lid, host.ports[1].lmc),
            (Guid(0x10_0011), Lid(1), 2)
        );
        let rates: Vec<_> = topology.links().iter().map(|link| link.rate.to_string()).collect();
        assert_eq!(rates, ["4xHDR", "12xFDR"]);
        let up = End { node: 0, port: 36 };
        assert_eq!(topology.peer(up).unwrap().0, End { node: 1, port: 3 });
    }

    /// Warnings of infiniband-diags on standard error.
    const WARNINGS: &str = "\
ibwarn: [25777] get_abi_version: can't read ABI version from \
/sys/class/infiniband_mad/abi_version (No such file or directory): is ib_umad module loaded?
ibwarn: [3364] mad_rpc: _do_madrpc failed; dport (DR path slid 65535; dlid 0; 0,1,22)
src/query_smp.c:196; umad (DR path slid 0; dlid 0; 0,1,17 Attr 0x15:1) bad status 110; \
Connection timed out
./libibnetdisc/ibnetdisc.c:802; can't open MAD port ((null):0)
";

    #[test]
    fn warnings_before_a_dump_are_skipped_and_returned() {
        let text = format!("{WARNINGS}{DUMP}");
        let plain = Topology::read("dump", DUMP, 0).unwrap();
        assert_eq!(Topology::read("dump", &text, 0), Ok(plain));
        let skipped: Vec<_> =
            preamble(&text).iter().map(|(number, line)| (*number, line.len())).collect();
        let warnings: Vec<_> = (1..).zip(WARNINGS.lines().map(str::len)).collect();
        assert_eq!(skipped, warnings);
        assert!(preamble(DUMP).is_empty());
    }

    #[test]
    fn warnings_among_records_are_errors_and_their_lines_are_those_of_the_file() {
        let text = format!("{WARNINGS}{DUMP}{WARNINGS}");
        let error = Topology::read("dump", &text, 0).unwrap_err().to_string();
        let line = 1 + WARNINGS.lines().count() + DUMP.lines().count();
        assert!(error.starts_with(&format!("dump:{line}: `ibwarn: [25777]")), "{error}");
        let error = Topology::read("dump", WARNINGS, 0).unwrap_err().to_string();
        assert!(error.starts_with("dump:1: `ibwarn: [25777]"), "no topology follows: {error}");
    }

    #[test]
    fn names_of_a_simulated_net_are_any() {
        let net = "Switch 8 \"Switch1\"\n[1] \"Hca1\"[1]\n[4] \"Hca2\"[1] w=12\n\n\
            Hca 2 \"Hca1\"\n[1] \"Switch1\"[1]\n\nHca 2 \"Hca2\"\n";
        let topology = Topology::read("net", net, 5).unwrap();
        assert_eq!((topology.nodes().len(), topology.links().len()), (3, 2));
        assert_eq!(topology.links()[1].rate.width, LinkWidth::X12);
        assert_eq!(topology.nodes()[1].guid, guid_of(5, 1));
    }

    #[test]
    fn errors_name_file_line_word_and_remedy() {
        let message = |text: &str| Topology::read("net", text, 0).unwrap_err().to_string();
        let cases = [
            ("Switch 8 \"A\"\nSwich 8 \"B\"", "net:2: `Swich 8 \"B\"`: begin the line with Switch"),
            ("Switch 255 \"A\"", "net:1: `255 \"A\"`: give a number from 1 to 254"),
            ("Switch 8 A", "net:1: `A`: put a node's name in double quotes here"),
            ("Switch 8 \"A\"\nCa 1 \"A\"", "net:2: `A`: another node has this name"),
            ("[1] \"A\"[1]", "net:1: `[1] \"A\"[1]`: put the line of its node before it"),
            ("Ca 1 \"A\"\n[2] \"A\"[1]", "its node has no such port"),
            ("Ca 1 \"A\"\n[x] \"A\"[1]", "put a port number from 1 to 254 in brackets"),
            ("Ca 1 \"A\"\n[1] \"A\"[1]", "net:2: `A`: one of the two ports has another link"),
            ("Ca 1 \"A\"\n\n[1] \"B\"[1]", "net:3: `B`: no node has this name"),
            ("Ca 1 \"A\"\n[1] \"B\"[2]\nCa 1 \"B\"", "net:2: `B`: its node has no such port"),
            ("Ca 1 \"A\"\n[1] \"B\"[1] w=3\nCa 1 \"B\"", "net:2: `w=3`: give a width of 1, 2, 4"),
            ("Ca 1 \"A\"\n[1] \"B\"[1]x\nCa 1 \"B\"", "net:2: `x`: end the line here, or begin"),
            ("caguid=0xq", "net:1: `0xq`: put a hexadecimal number here"),
            ("color=0x1", "net:1: `color`: begin the line"),
            ("caguid=1\nCa 1 \"A\"\ncaguid=1\nCa 1 \"B\"", "another node has this GUID"),
            ("\n# nothing\n", "there is no node in it"),
            (
                "Ca 1 \"A\"\n[1] \"B\"[1]\nCa 1 \"B\"\nCa 1 \"C\"\n[1] \"B\"[1]",
                "net:5: `B`: one of the two ports has another link already",
            ),
        ];
        for (text, expected) in cases {
            assert!(message(text).contains(expected), "{text}\ngives {}", message(text));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_topology_or_an_error(
            lines in prop::collection::vec(
                "(Switch|Ca|Rt|\\[[0-9]{0,3}\\]|caguid=|#)?[ 0-9\"\\[\\]()A-Bx=#é]{0,20}", 0..8),
        ) {
            let _ = Topology::read("any", &lines.join("\n"), 0);
        }
    }
}
