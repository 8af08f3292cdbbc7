//! Hash slots of a cluster: the slot of a downstream, and the masters that serve slots. It has no I/O.

use redis::Value;

use super::address::Address;

/// The number of slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of all keys of a downstream, whose name is their hash tag.
pub(super) fn slot(downstream: &str) -> u16 {
    crc16(downstream.as_bytes()) % SLOTS
}

/// CRC-16/XMODEM, as the specification of Redis Cluster requires.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(
            crc ^ u16::from(byte) << 8,
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
            },
        )
    })
}

/// The view that one node has of the cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Topology {
    /// First slot, last slot and master of each range, in ascending order without overlaps.
    pub(super) ranges: Vec<(u16, u16, Address)>,
    pub(super) replicas: Vec<Address>,
}

impl Topology {
    /// Parses the answer of the node `asked` to CLUSTER SLOTS.
    ///
    /// # Errors
    /// A text that says what is wrong with the answer.
    pub(super) fn parse(answer: &Value, asked: &Address) -> Result<Self, String> {
        let malformed = || format!("{answer:?} for the slots of a cluster");
        let Value::Array(listed_ranges) = answer else { return Err(malformed()) };
        let (mut ranges, mut replicas) = (vec![], vec![]);
        for range in listed_ranges {
            let Value::Array(parts) = range else { return Err(malformed()) };
            let [Value::Int(first), Value::Int(last), master, others @ ..] = parts.as_slice() else {
                return Err(malformed());
            };
            let slot = |number: i64| u16::try_from(number).ok().filter(|slot| *slot < SLOTS);
            let (Some(first), Some(last)) = (slot(*first), slot(*last)) else { return Err(malformed()) };
            ranges.push((first, last, node(master, asked).ok_or_else(malformed)?));
            replicas.extend(others.iter().filter_map(|other| node(other, asked)));
        }
        ranges.sort_unstable_by_key(|(first, ..)| *first);
        let apart = ranges.windows(2).all(|pair| pair[0].1 < pair[1].0);
        if ranges.is_empty() || !apart || ranges.iter().any(|(first, last, _)| first > last) {
            return Err(malformed());
        }
        Ok(Self { ranges, replicas })
    }

    /// The first slot that no master serves.
    pub(super) fn gap(&self) -> Option<u16> {
        let next = self.ranges.iter().try_fold(
            0,
            |next, (first, last, _)| {
                if *first > next { Err(next) } else { Ok(last + 1) }
            },
        );
        match next {
            Ok(SLOTS) => None,
            Ok(gap) | Err(gap) => Some(gap),
        }
    }
}

/// Parses a node of CLUSTER SLOTS: its host (or that of the node `asked`), its port, and further fields.
fn node(value: &Value, asked: &Address) -> Option<Address> {
    let Value::Array(parts) = value else { return None };
    let (host, port) = match parts.as_slice() {
        [Value::Nil, Value::Int(port), ..] => ("", port),
        [Value::BulkString(host), Value::Int(port), ..] => (std::str::from_utf8(host).ok()?, port),
        _ => return None,
    };
    Some(Address::announced(host, u16::try_from(*port).ok()?, asked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(["foo", "bar", "billing"].map(slot), [12_182, 5_061, 12_682]);
    }

    fn asked() -> Address {
        Address { host: "10.0.0.1".to_owned(), port: 7000 }
    }

    fn parse(text: &str) -> Result<Topology, String> {
        Topology::parse(&redis::parse_redis_value(text.as_bytes()).unwrap(), &asked())
    }

    /// A range of CLUSTER SLOTS, as it goes over the wire; nodes are RESP arrays.
    fn range(first: i64, last: i64, nodes: &[String]) -> String {
        format!("*{}\r\n:{first}\r\n:{last}\r\n{}", nodes.len() + 2, nodes.concat())
    }

    fn named(host: &str, port: u16) -> String {
        format!("*3\r\n${}\r\n{host}\r\n:{port}\r\n$2\r\nid\r\n", host.len())
    }

    #[test]
    fn what_a_node_tells_of_the_cluster() {
        let unknown = "*4\r\n$-1\r\n:7003\r\n$2\r\nid\r\n*0\r\n".to_owned();
        let text = [
            range(5461, 16383, &[named("", 7002), named("c.example", 7004)]),
            range(0, 5460, &[named("10.0.0.9", 7001), unknown]),
        ];
        let topology = parse(&format!("*2\r\n{}", text.concat())).unwrap();
        let at = |host: &str, port| Address { host: host.to_owned(), port };
        assert_eq!(topology.ranges, [(0, 5460, at("10.0.0.9", 7001)), (5461, 16383, at("10.0.0.1", 7002))]);
        assert_eq!(topology.replicas, [at("c.example", 7004), at("10.0.0.1", 7003)]);
        assert_eq!(topology.gap(), None);
    }

    #[test]
    fn slots_without_a_master_are_found() {
        for (ranges, gap) in [(vec![(1, 16383)], 0), (vec![(0, 5), (7, 16383)], 6), (vec![(0, 16382)], 16383)]
        {
            let listed: Vec<String> =
                ranges.iter().map(|(first, last)| range(*first, *last, &[named("a", 1)])).collect();
            let topology = parse(&format!("*{}\r\n{}", listed.len(), listed.concat())).unwrap();
            assert_eq!(topology.gap(), Some(gap));
        }
    }

    #[test]
    fn what_is_no_topology_is_refused() {
        let overlap = [range(0, 9, &[named("a", 1)]), range(9, 20, &[named("b", 1)])].concat();
        for text in [
            "*0\r\n".to_owned(),
            "+OK\r\n".to_owned(),
            format!("*1\r\n{}", range(0, 16384, &[named("a", 1)])),
            format!("*1\r\n{}", range(9, 0, &[named("a", 1)])),
            format!("*1\r\n{}", range(0, 9, &[])),
            format!("*1\r\n{}", range(0, 9, &["*1\r\n:1\r\n".to_owned()])),
            format!("*2\r\n{overlap}"),
        ] {
            assert!(parse(&text).is_err(), "{text}");
        }
    }
}
