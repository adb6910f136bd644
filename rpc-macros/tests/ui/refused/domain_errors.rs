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

fn main() {}
