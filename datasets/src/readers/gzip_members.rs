//! Unpacks gzip data of any number of members.

use std::io::{self, BufRead, ErrorKind, Read};

use flate2::bufread::GzDecoder;

/// The text of all members of gzip data, one after the other.
///
/// Zeros after the last member are padding, as for `gzip` itself: tapes and some block devices fill their last block
/// with them. Anything else after a member must be another member.
pub(super) struct GzipMembers<R> {
    /// The member that is read; `None` after the last one.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> GzipMembers<R> {
    pub(super) fn new(packed: R) -> Self {
        Self { member: Some(GzDecoder::new(packed)) }
    }
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let length = member.read(into)?;
            if length > 0 || into.is_empty() {
                return Ok(length);
            }
            let Some(ended) = self.member.take() else { break };
            let mut packed = ended.into_inner();
            if skip_zeros(&mut packed)? {
                self.member = Some(GzDecoder::new(packed));
            }
        }
        Ok(0)
    }
}

/// Skips zeros. Returns whether anything follows them.
fn skip_zeros(packed: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let (zeros, is_end, all) = match packed.fill_buf() {
            Ok(bytes) => {
                let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
                (zeros, bytes.is_empty(), zeros == bytes.len())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        packed.consume(zeros);
        if is_end || !all {
            return Ok(!is_end);
        }
    }
}
