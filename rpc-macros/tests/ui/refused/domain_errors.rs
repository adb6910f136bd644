use sluicegate::DomainError;

#[derive(Debug, DomainError)]
enum Nobodys {
    Missing,
}

#[derive(Debug, DomainError)]
#[rpc(domain = "", colour = "red")]
enum Misspelt {
    #[rpc(code = Missing)]
    Code,
    #[rpc(code = NotFound, reason = "not found")]
    Reason,
    #[rpc(code = NotFound, retry_delay)]
    Option,
    #[rpc(code = Internal)]
    Fields {
        #[rpc(metadata = "Key")]
        key: u8,
        #[rpc(hidden)]
        hidden: u8,
        #[rpc(retry_delay)]
        soon: std::time::Duration,
        #[rpc(retry_delay)]
        later: std::time::Duration,
    },
    #[rpc(code = Internal)]
    Unnamed(#[rpc(metadata)] u8),
}

#[derive(DomainError)]
#[rpc(domain = "library.example")]
union Both {
    a: u8,
    b: u8,
}

#[derive(Debug, DomainError)]
#[rpc(domain = "library.example", code = NotFound, reason = "NO_SUCH_BOOK")]
enum Misplaced {
    #[rpc(code = NotFound, domain = "archive.example", crate = "elsewhere")]
    OnAVariant,
}

#[derive(Debug, DomainError)]
#[rpc(domain = "library.example", domain = "archive.example", crate = "sluicegate", crate = "sluicegate")]
enum Twice {
    #[rpc(code = NotFound, code = Internal, reason = "A", reason = "B")]
    Case {
        #[rpc(metadata, metadata = "other")]
        key: u8,
        #[rpc(retry_delay, retry_delay)]
        soon: std::time::Duration,
    },
}

#[derive(Debug, DomainError)]
#[rpc(domain = "library.example")]
enum Abroad {
    #[rpc(code = NotFound)]
    Bücherei,
}

fn main() {}
