//! Messages between ranks and hub: six words and a text.

use std::io::{self, Error, ErrorKind, Read, Write};

use super::Header;

/// The size of the longest text of a hub in bytes: a large world's list of hosts.
pub(super) const MOST: usize = 1 << 20;

/// The number of words before the text.
pub(super) const WORDS: usize = 6;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// A rank's greeting: its index, the size of its world, and two lines with its host and version.
    Hello { rank: u64, size: u64, about: String },
    /// The hub's reply once all ranks are there: rank 0's text, then the hosts, one per line.
    Hosts(String),
    /// A sign of life.
    Beat,
    /// A rank arrived at its next meeting.
    Come(Header),
    /// All ranks arrived at this meeting, with equal headers.
    Go(u64),
    /// Ranks arrived at this meeting with different headers. With number 0, they are not a world.
    Refused(u64, String),
    /// A rank that comes to no more meetings.
    Leaving,
    /// A lost rank, and the reason.
    Lost(u64, String),
    /// All ranks have left.
    Gone,
}

impl Message {
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let (kind, numbers, text): (u64, Header, &str) = match self {
            Self::Hello { rank, size, about } => (0, [*rank, *size, 0, 0], about),
            Self::Hosts(hosts) => (1, [0; 4], hosts),
            Self::Beat => (2, [0; 4], ""),
            Self::Come(header) => (3, *header, ""),
            Self::Go(number) => (4, [*number, 0, 0, 0], ""),
            Self::Refused(number, why) => (5, [*number, 0, 0, 0], why),
            Self::Leaving => (6, [0; 4], ""),
            Self::Lost(rank, why) => (7, [*rank, 0, 0, 0], why),
            Self::Gone => (8, [0; 4], ""),
        };
        let [a, b, c, d] = numbers;
        let words = [kind, a, b, c, d, text.len() as u64].map(u64::to_le_bytes);
        to.write_all(&[words.as_flattened(), text.as_bytes()].concat())
    }

    /// Reads a message whose text has at most `most` bytes. Anything else is an error.
    pub(super) fn read(from: &mut impl Read, most: usize) -> io::Result<Self> {
        let mut bytes = [[0; 8]; WORDS];
        from.read_exact(bytes.as_flattened_mut())?;
        let [kind, a, b, c, d, _] = bytes.map(u64::from_le_bytes);
        let refused = |why: &str| Err(Error::new(ErrorKind::InvalidData, why));
        let mut text = vec![0; text_len(bytes.as_flattened(), most)?];
        from.read_exact(&mut text)?;
        let Ok(text) = String::from_utf8(text) else { return refused("a message that is not text") };
        Ok(match kind {
            0 => Self::Hello { rank: a, size: b, about: text },
            1 => Self::Hosts(text),
            2 => Self::Beat,
            3 => Self::Come([a, b, c, d]),
            4 => Self::Go(a),
            5 => Self::Refused(a, text),
            6 => Self::Leaving,
            7 => Self::Lost(a, text),
            8 => Self::Gone,
            _ => return refused("not the message of a rank"),
        })
    }
}

/// The length of the text after these words, at most `most`.
pub(super) fn text_len(words: &[u8], most: usize) -> io::Result<usize> {
    let len = words.as_chunks().0.last().map_or(u64::MAX, |len| u64::from_le_bytes(*len));
    let len = usize::try_from(len).ok().filter(|len| *len <= most);
    len.ok_or_else(|| Error::new(ErrorKind::InvalidData, "a message that is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let messages = [
            Message::Hello { rank: 3, size: 4, about: "node\n0.1.0".to_owned() },
            Message::Hosts("a\nb".to_owned()),
            Message::Beat,
            Message::Come([1, 2, 4, 1 << 40]),
            Message::Go(7),
            Message::Refused(7, "why".to_owned()),
            Message::Leaving,
            Message::Lost(2, "gone".to_owned()),
            Message::Gone,
        ];
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| message.write(&mut bytes).unwrap());
        let mut from = &bytes[..];
        messages.iter().for_each(|message| assert_eq!(Message::read(&mut from, MOST).unwrap(), *message));
        assert_eq!(Message::read(&mut from, MOST).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_text_that_is_too_long_is_refused_before_it_is_read() {
        let mut bytes = Vec::new();
        Message::Hosts("ab".to_owned()).write(&mut bytes).unwrap();
        assert!(Message::read(&mut &bytes[..], 2).is_ok());
        assert_eq!(Message::read(&mut &bytes[..WORDS * 8], 1).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn strangers_are_refused() {
        for stranger in ["GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything that there is\r\n\r\n", "\u{9}"] {
            let padded = [stranger.as_bytes(), &[0; 64]].concat();
            assert_eq!(Message::read(&mut &padded[..], MOST).unwrap_err().kind(), ErrorKind::InvalidData);
        }
    }
}
