//! Server-sent events, as the HTML standard divides them (WHATWG, *HTML*, 9.2.6), wherever the network
//! has cut the bytes.
//!
//! Only `data` matters to us; lines of an event are joined, comments and other fields are skipped. Where
//! the standard drops an event that no empty line ends, the end of the answer ends it here, for some
//! servers leave that line out. Buffers are kept from event to event: nothing is allocated per token.

/// Most bytes of a line and of an event: far above any answer, below what would fill the memory when
/// a server never ends a line.
const MOST: usize = 16 << 20;

/// An event that is larger than any that is meant well.
#[derive(Debug, PartialEq)]
pub struct TooLong;

/// Divides bytes into events.
#[derive(Default)]
pub struct Events {
    /// What is there of a line.
    line: Vec<u8>,
    /// What is there of an event's data.
    data: Vec<u8>,
    /// Whether the event has data, empty or not.
    has_data: bool,
    /// Whether the last byte was a carriage return: a line feed behind it ends nothing.
    after_return: bool,
    /// Whether a first line was read, in front of which a byte order mark may stand.
    started: bool,
}

impl Events {
    /// Tells the data of every event that ends within these bytes.
    pub fn feed<E: From<TooLong>>(
        &mut self,
        mut bytes: &[u8],
        mut tell: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.after_return && !bytes.is_empty() {
            self.after_return = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (line, rest) = bytes.split_at(end);
            self.hold(line)?;
            self.end_line(&mut tell)?;
            bytes = &rest[1..];
            if rest[0] == b'\r' {
                self.after_return = bytes.is_empty();
                bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
            }
        }
        Ok(self.hold(bytes)?)
    }

    /// Tells the event that the end of the answer has left without its empty line.
    pub fn finish<E: From<TooLong>>(
        &mut self,
        mut tell: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.end_line(&mut tell)?;
        self.end_event(&mut tell)
    }

    fn hold(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.line.len() + bytes.len() + self.data.len() > MOST {
            return Err(TooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line<E>(&mut self, tell: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut line = &self.line[..];
        if !self.started {
            self.started = true;
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            self.line.clear();
            return self.end_event(tell);
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = line.split_at(colon.unwrap_or(line.len()));
        if name == b"data" {
            let value = value.strip_prefix(b":").unwrap_or(value);
            if self.has_data {
                self.data.push(b'\n');
            }
            self.has_data = true;
            self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        }
        self.line.clear();
        Ok(())
    }

    fn end_event<E>(&mut self, tell: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let told = if self.has_data { tell(&self.data) } else { Ok(()) };
        self.data.clear();
        self.has_data = false;
        told
    }
}

#[cfg(test)]
mod tests;
