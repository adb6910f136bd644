//! HELLO: any bytes as the first of a connection.
//!
//! - Every prefix is waited with, or shows the same that all of it shows.
//! - What was read is what is read again when it is written.
//! - Decoding allocates nothing.

use rpc_codec::{Hello, MAX_HELLO_LEN};

use crate::memory;

pub(crate) fn check(data: &[u8]) {
    let (whole, allocated) = memory::peak(|| Hello::decode(data));
    assert_eq!(allocated, 0, "to decode a HELLO takes no memory");
    let decided = (0..=data.len()).map(|len| Hello::decode(&data[..len])).find(|decoded| *decoded != Ok(None));
    assert_eq!(decided.unwrap_or(Ok(None)), whole, "byte by byte");

    match whole {
        Ok(Some((hello, len))) => {
            assert!(len <= MAX_HELLO_LEN as usize + 4 && len <= data.len(), "a HELLO of {len} bytes");
            let mut wire = Vec::new();
            hello.encode(&mut wire);
            let len = wire.len();
            assert_eq!(Hello::decode(&wire), Ok(Some((hello, len))));
        }
        Ok(None) => assert!(data.len() < MAX_HELLO_LEN as usize + 4, "{} bytes are not enough", data.len()),
        Err(error) => assert!(!error.to_string().is_empty(), "an error says what it is"),
    }
}
