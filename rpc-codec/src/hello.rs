//! HELLO: the first frame each way, and what the two ends tell each other in it.

use rpc_core::CallId;

use crate::{
    CodecId,
    encoder::OpenFrame,
    error::DecodeError,
    header::{COUNTED_LEN, HEADER_LEN, Header, Kind},
};

/// The first eight bytes of a HELLO's head.
pub const MAGIC: [u8; 8] = *b"\x89SLUICE\n";
/// The one version that this library speaks.
pub const VERSION: u8 = 1;
/// The longest HELLO frame, without its length field.
pub const MAX_HELLO_LEN: u32 = 4096;

/// What one end tells the other when the connection opens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hello {
    /// The lowest version spoken.
    pub min_version: u8,
    /// The highest version spoken.
    pub max_version: u8,
    /// The longest frame taken, without its length field; at least 8,192.
    pub max_frame: u32,
    /// The longest body taken.
    pub max_message: u32,
    /// The credit of a new stream in bytes.
    pub stream_window: u32,
    /// How many calls at once are welcome on this connection.
    pub advised_calls: u32,
    /// The codecs taken.
    pub codecs: CodecSet,
    /// The compressions taken, as bits by id.
    pub compressions: u64,
    /// Optional features, as bits.
    pub features: u64,
}

impl Default for Hello {
    /// What holds for a field that a HELLO leaves out, which is also what a client may rely on
    /// before it has the server's HELLO.
    fn default() -> Self {
        Self {
            min_version: VERSION,
            max_version: VERSION,
            max_frame: 64 * 1024,
            max_message: 64 * 1024,
            stream_window: 64 * 1024,
            advised_calls: 64,
            codecs: CodecSet::default(),
            compressions: 0,
            features: 0,
        }
    }
}

impl Hello {
    /// Appends the HELLO frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let frame = OpenFrame::begin(out);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[self.min_version, self.max_version]);
        let mut codecs = [0; 64];
        let mut count = 0;
        for codec in self.codecs.iter() {
            codecs[count] = codec.to_wire();
            count += 1;
        }
        tlv(out, TLV_MAX_FRAME, &self.max_frame.to_be_bytes());
        tlv(out, TLV_MAX_MESSAGE, &self.max_message.to_be_bytes());
        tlv(out, TLV_STREAM_WINDOW, &self.stream_window.to_be_bytes());
        tlv(out, TLV_ADVISED_CALLS, &self.advised_calls.to_be_bytes());
        tlv(out, TLV_CODECS, &codecs[..count]);
        tlv(out, TLV_COMPRESSIONS, &self.compressions.to_be_bytes());
        tlv(out, TLV_FEATURES, &self.features.to_be_bytes());
        frame.finish_head(out, Kind::Hello, CallId::CONNECTION);
    }

    /// Reads the first frame of a connection at the front of `buf`: the HELLO and the length of its
    /// frame, or `None` if more bytes are needed.
    ///
    /// # Errors
    ///
    /// The peer speaks something else, or no version that we do. Found at the first byte that shows
    /// it; a length is believed only up to [`MAX_HELLO_LEN`].
    pub fn decode(buf: &[u8]) -> Result<Option<(Self, usize)>, DecodeError> {
        let header = match Header::decode(buf, MAX_HELLO_LEN) {
            Ok(header) => header,
            Err(DecodeError::FrameTooLong { .. }) => return Err(foreign(buf)),
            Err(_) => return Err(DecodeError::NotSluicegate),
        };
        if buf.get(4).is_some_and(|&kind| kind != Kind::Hello as u8) {
            return Err(DecodeError::NotSluicegate);
        }
        let Some(header) = header else { return Ok(None) };
        // In the order of the bytes, so that any split of them finds the same error.
        if header.frame_len - 4 != COUNTED_LEN as usize + header.head_len {
            return Err(malformed("it has a body"));
        }
        if header.head_len < FIXED_LEN {
            return Err(malformed("the head is cut short"));
        }
        let shown = &buf[HEADER_LEN..];
        let shown = &shown[..shown.len().min(MAGIC.len())];
        if !MAGIC.starts_with(shown) {
            return Err(DecodeError::NotSluicegate);
        }
        let Some(head) = buf.get(HEADER_LEN..header.frame_len) else { return Ok(None) };
        let (fixed, tlvs) = head.split_at(FIXED_LEN);
        let mut hello = Self { min_version: fixed[8], max_version: fixed[9], ..Self::default() };
        hello.read_tlvs(tlvs)?;
        if hello.min_version > VERSION || hello.max_version < VERSION {
            return Err(DecodeError::NoCommonVersion { min: hello.min_version, max: hello.max_version });
        }
        if hello.max_frame < MIN_MAX_FRAME {
            return Err(malformed("the longest frame it takes is below 8,192 bytes"));
        }
        Ok(Some((hello, header.frame_len)))
    }

    fn read_tlvs(&mut self, mut tlvs: &[u8]) -> Result<(), DecodeError> {
        let mut seen = 0_u64;
        while !tlvs.is_empty() {
            let Some((head, rest)) = tlvs.split_first_chunk::<4>() else {
                return Err(malformed("a field is cut short"));
            };
            let (kind, len) = (u16::from_be_bytes([head[0], head[1]]), u16::from_be_bytes([head[2], head[3]]));
            let Some((value, rest)) = rest.split_at_checked(usize::from(len)) else {
                return Err(malformed("a field is cut short"));
            };
            tlvs = rest;
            if kind < 64 {
                if seen & (1 << kind) != 0 {
                    return Err(malformed("a field stands twice"));
                }
                seen |= 1 << kind;
            }
            match kind {
                TLV_MAX_FRAME => self.max_frame = read_u32(value)?,
                TLV_MAX_MESSAGE => self.max_message = read_u32(value)?,
                TLV_STREAM_WINDOW => self.stream_window = read_u32(value)?,
                TLV_ADVISED_CALLS => self.advised_calls = read_u32(value)?,
                TLV_CODECS => self.codecs = value.iter().map(|&id| CodecId::from_wire(id)).collect(),
                TLV_COMPRESSIONS => self.compressions = read_u64(value)?,
                TLV_FEATURES => self.features = read_u64(value)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// A set of codecs by their ids; ids above 63 are not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodecSet(u64);

impl CodecSet {
    /// Whether `codec` is in the set.
    pub const fn contains(self, codec: CodecId) -> bool {
        codec.to_wire() < 64 && self.0 & (1 << codec.to_wire()) != 0
    }

    /// The codecs of the set, by id.
    pub fn iter(self) -> impl Iterator<Item = CodecId> {
        (0..64).map(CodecId::from_wire).filter(move |&codec| self.contains(codec))
    }
}

impl FromIterator<CodecId> for CodecSet {
    fn from_iter<I: IntoIterator<Item = CodecId>>(codecs: I) -> Self {
        Self(codecs.into_iter().filter(|codec| codec.to_wire() < 64).fold(0, |set, codec| set | 1 << codec.to_wire()))
    }
}

/// Magic bytes and versions, in front of the fields.
const FIXED_LEN: usize = MAGIC.len() + 2;
/// Every end takes frames of this length: a refusal, a GOAWAY or the shortest part fits and is sent
/// without asking.
const MIN_MAX_FRAME: u32 = 8192;

const TLV_MAX_FRAME: u16 = 1;
const TLV_MAX_MESSAGE: u16 = 2;
const TLV_STREAM_WINDOW: u16 = 3;
const TLV_ADVISED_CALLS: u16 = 4;
const TLV_CODECS: u16 = 5;
const TLV_COMPRESSIONS: u16 = 6;
const TLV_FEATURES: u16 = 7;

fn tlv(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(value.len() as u16).to_be_bytes());
    out.extend_from_slice(value);
}

fn read_u32(value: &[u8]) -> Result<u32, DecodeError> {
    value.try_into().map(u32::from_be_bytes).map_err(|_| malformed("a field has the wrong length"))
}

fn read_u64(value: &[u8]) -> Result<u64, DecodeError> {
    value.try_into().map(u64::from_be_bytes).map_err(|_| malformed("a field has the wrong length"))
}

const fn malformed(why: &'static str) -> DecodeError {
    DecodeError::Malformed { kind: Kind::Hello.name(), why }
}

/// Names the protocol whose first four bytes are not a length of ours.
fn foreign(buf: &[u8]) -> DecodeError {
    let protocol = match buf.first_chunk::<4>() {
        Some(b"GET " | b"POST" | b"PUT " | b"HEAD" | b"OPTI" | b"DELE" | b"PATC" | b"CONN" | b"TRAC" | b"HTTP") => {
            "HTTP/1"
        }
        Some(b"PRI ") => "HTTP/2",
        Some(b"SSH-") => "SSH",
        Some(b"PING" | b"*1\r\n" | b"*2\r\n" | b"*3\r\n") => "Redis",
        Some([0x16, 0x03, ..]) => "TLS",
        _ => return DecodeError::NotSluicegate,
    };
    DecodeError::ForeignProtocol { protocol }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            max_frame: 1 << 18,
            codecs: [CodecId::BINCODE, CodecId::JSON].into_iter().collect(),
            ..Hello::default()
        }
    }

    #[test]
    fn a_hello_comes_back_from_any_split() {
        let mut wire = Vec::new();
        hello().encode(&mut wire);
        for cut in 0..wire.len() {
            assert_eq!(Hello::decode(&wire[..cut]), Ok(None), "at {cut}");
        }
        let len = wire.len();
        wire.extend_from_slice(b"next");
        assert_eq!(Hello::decode(&wire), Ok(Some((hello(), len))));
    }

    #[test]
    fn another_protocol_is_named_at_its_fourth_byte() {
        for (bytes, name) in [
            (&b"GET / HTTP/1.1\r\n"[..], "HTTP/1"),
            (b"PRI * HTTP/2.0\r\n", "HTTP/2"),
            (b"\x16\x03\x01\x02\x00", "TLS"),
            (b"SSH-2.0-OpenSSH", "SSH"),
            (b"*1\r\n$4\r\nPING\r\n", "Redis"),
        ] {
            assert_eq!(Hello::decode(&bytes[..3]), Ok(None));
            assert_eq!(Hello::decode(&bytes[..4]), Err(DecodeError::ForeignProtocol { protocol: name }));
        }
        assert_eq!(Hello::decode(&[0xff; 4]), Err(DecodeError::NotSluicegate));
    }

    #[test]
    fn unknown_fields_are_ignored_and_duplicates_refused() {
        let mut wire = Vec::new();
        hello().encode(&mut wire);
        let with = |extra: &[u8]| {
            let mut wire = wire.clone();
            wire.extend_from_slice(extra);
            let len = (wire.len() - 4) as u32;
            wire[..4].copy_from_slice(&len.to_be_bytes());
            let head = (len - COUNTED_LEN) as u16;
            wire[6..8].copy_from_slice(&head.to_be_bytes());
            Hello::decode(&wire)
        };
        assert_eq!(with(&[0x12, 0x34, 0, 1, 9]).unwrap().unwrap().0, hello());
        assert!(matches!(
            with(&[0, 1, 0, 4, 0, 1, 0, 0]),
            Err(DecodeError::Malformed { why: "a field stands twice", .. })
        ));
        assert!(matches!(with(&[0, 9, 0, 4, 0]), Err(DecodeError::Malformed { .. })));
    }

    #[test]
    fn a_peer_of_another_version_is_told_which_we_speak() {
        let mut wire = Vec::new();
        Hello { min_version: 2, max_version: 3, ..hello() }.encode(&mut wire);
        assert_eq!(Hello::decode(&wire), Err(DecodeError::NoCommonVersion { min: 2, max: 3 }));
    }
}
