//! How much to read of a connection at once.

/// Bytes to ask the transport for: few at first, twice as many whenever all of them came, half as many
/// when far fewer did.
///
/// What is read and cannot be handled yet is kept. A peer that asks for more than it takes is so kept
/// little of, while who sends much is read in large pieces soon.
#[derive(Debug)]
pub(crate) struct ReadSize(usize);

impl Default for ReadSize {
    fn default() -> Self {
        Self(Self::LEAST)
    }
}

impl ReadSize {
    /// A batch of small calls, with room: one that just does not fit is read in two turns, and each of them
    /// wakes a thread.
    const LEAST: usize = 16 * 1024;
    pub(crate) const MOST: usize = 64 * 1024;

    pub(crate) fn get(&self) -> usize {
        self.0
    }

    /// Notes how many came.
    pub(crate) fn came(&mut self, bytes: usize) {
        if bytes >= self.0 {
            self.0 = (self.0 * 2).min(Self::MOST);
        } else if bytes < self.0 / 4 {
            self.0 = (self.0 / 2).max(Self::LEAST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sends_much_is_read_in_large_pieces_soon_and_in_small_ones_again_later() {
        let mut size = ReadSize::default();
        let mut read = 0;
        while size.get() < ReadSize::MOST {
            read += size.get();
            size.came(size.get());
        }
        assert_eq!(read, (16 + 32) * 1024);
        size.came(ReadSize::MOST);
        assert_eq!(size.get(), ReadSize::MOST);
        // Half of it is no reason to ask for less.
        size.came(ReadSize::MOST / 2);
        assert_eq!(size.get(), ReadSize::MOST);
        (0..10).for_each(|_| size.came(100));
        assert_eq!(size.get(), ReadSize::LEAST);
    }
}
