//! gRPC reflection. `envoy-types` has no descriptors, so the messages of this service are described here, without those
//! that are not used, and written to `rls.bin`.

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto,
};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::scene::{Service, Setup};

/// The files: name, package, and a line for each type. A field has a number, a type (`[]`: a list) and a name.
const FILES: [(&str, &str, &str); 6] = [
    ("google/protobuf/duration.proto", "google.protobuf", "message Duration: 1 int64 seconds, 2 int32 nanos"),
    ("google/protobuf/wrappers.proto", "google.protobuf", "message UInt64Value: 1 uint64 value"),
    (
        "envoy/type/v3/ratelimit_unit.proto",
        "envoy.type.v3",
        "enum RateLimitUnit: 0 UNKNOWN, 1 SECOND, 2 MINUTE, 3 HOUR, 4 DAY, 5 MONTH, 6 YEAR, 7 WEEK",
    ),
    (
        "envoy/config/core/v3/base.proto",
        "envoy.config.core.v3",
        "message HeaderValue: 1 string key, 2 string value, 3 bytes raw_value",
    ),
    (
        "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
        "envoy.extensions.common.ratelimit.v3",
        "message Entry: 1 string key, 2 string value
         message RateLimitOverride: 1 uint32 requests_per_unit, 2 enum.envoy.type.v3.RateLimitUnit unit
         message RateLimitDescriptor: 1 []Entry entries, 2 RateLimitOverride limit, 3 google.protobuf.UInt64Value hits_addend, 4 bool is_negative_hits",
    ),
    (
        "envoy/service/ratelimit/v3/rls.proto",
        "envoy.service.ratelimit.v3",
        "message RateLimitRequest: 1 string domain, 2 []envoy.extensions.common.ratelimit.v3.RateLimitDescriptor descriptors, 3 uint32 hits_addend
         message RateLimitResponse: 1 enum.Code overall_code, 2 []DescriptorStatus statuses, 3 []envoy.config.core.v3.HeaderValue response_headers_to_add
         message DescriptorStatus: 1 enum.Code code, 2 RateLimit current_limit, 3 uint32 limit_remaining, 4 google.protobuf.Duration duration_until_reset
         message RateLimit: 1 uint32 requests_per_unit, 2 enum.Unit unit, 3 string name
         enum Code: 0 UNKNOWN, 1 OK, 2 OVER_LIMIT
         enum Unit: 0 UNKNOWN_UNIT, 1 SECOND, 2 MINUTE, 3 HOUR, 4 DAY, 5 MONTH, 6 YEAR, 7 WEEK",
    ),
];

const WRITTEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/rls.bin");

/// `WRITE=1 cargo test -p tower-distributed-envoy` writes the file anew.
#[test]
fn the_descriptors_are_those_of_the_service() {
    let described = described().encode_to_vec();
    if std::env::var_os("WRITE").is_some() {
        std::fs::write(WRITTEN, &described).unwrap();
    }
    assert_eq!(std::fs::read(WRITTEN).unwrap(), described);
}

/// As grpcurl asks.
#[tokio::test]
async fn tells_its_services_and_messages() {
    let service = Service::start(&Setup::new("domain: edge"));
    let mut client = ServerReflectionClient::new(service.channel().await);
    let ask = |request| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(request),
    };
    let requests = [
        MessageRequest::ListServices(String::new()),
        MessageRequest::FileContainingSymbol(SERVICE.to_owned()),
    ];
    let stream = futures::stream::iter(requests.map(ask));
    let mut answers = client
        .server_reflection_info(stream)
        .await
        .unwrap()
        .into_inner();
    let Some(MessageResponse::ListServicesResponse(services)) =
        answers.message().await.unwrap().unwrap().message_response
    else {
        panic!("no list of services");
    };
    let names: Vec<_> = services
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    assert!(names.contains(&SERVICE.to_owned()), "{names:?}");
    assert!(
        names.contains(&"grpc.health.v1.Health".to_owned()),
        "{names:?}"
    );
    let Some(MessageResponse::FileDescriptorResponse(file)) =
        answers.message().await.unwrap().unwrap().message_response
    else {
        panic!("no file of the service");
    };
    let file = FileDescriptorProto::decode(&*file.file_descriptor_proto[0]).unwrap();
    assert_eq!(file.name(), "envoy/service/ratelimit/v3/rls.proto");
}

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

fn described() -> FileDescriptorSet {
    let mut set = FileDescriptorSet::default();
    for (name, package, types) in FILES {
        // Each file may use all before it.
        let dependency = set.file.iter().map(|file| file.name().to_owned()).collect();
        let mut file = FileDescriptorProto {
            name: Some(name.to_owned()),
            package: Some(package.to_owned()),
            dependency,
            syntax: Some("proto3".to_owned()),
            ..FileDescriptorProto::default()
        };
        types
            .lines()
            .for_each(|line| describe(&mut file, line.trim()));
        set.file.push(file);
    }
    let file = set.file.last_mut().unwrap();
    let message = |end| Some(format!(".{}.RateLimit{end}", file.package()));
    let method = MethodDescriptorProto {
        name: Some("ShouldRateLimit".to_owned()),
        input_type: message("Request"),
        output_type: message("Response"),
        ..MethodDescriptorProto::default()
    };
    file.service.push(ServiceDescriptorProto {
        name: Some("RateLimitService".to_owned()),
        method: vec![method],
        ..ServiceDescriptorProto::default()
    });
    set
}

/// Adds the type of a line to a file.
fn describe(file: &mut FileDescriptorProto, line: &str) {
    let Some((head, members)) = line.split_once(": ") else {
        return;
    };
    let members = members
        .split(", ")
        .map(|member| member.split(' ').collect::<Vec<_>>());
    match head.split_once(' ') {
        Some(("enum", name)) => file.enum_type.push(EnumDescriptorProto {
            name: Some(name.to_owned()),
            value: members.map(|member| value(&member)).collect(),
            ..EnumDescriptorProto::default()
        }),
        Some((_, name)) => file.message_type.push(DescriptorProto {
            name: Some(name.to_owned()),
            field: members
                .map(|member| field(file.package(), &member))
                .collect(),
            ..DescriptorProto::default()
        }),
        None => {}
    }
}

fn value(member: &[&str]) -> EnumValueDescriptorProto {
    EnumValueDescriptorProto {
        number: member.first().and_then(|number| number.parse().ok()),
        name: member.last().map(|name| (*name).to_owned()),
        options: None,
    }
}

fn field(package: &str, member: &[&str]) -> FieldDescriptorProto {
    let written = member.get(1).copied().unwrap_or_default();
    let name = written.strip_prefix("[]").unwrap_or(written);
    let is_enum = name.starts_with("enum.");
    let (kind, type_name) = match name {
        "string" => (Type::String, None),
        "bytes" => (Type::Bytes, None),
        "bool" => (Type::Bool, None),
        "int32" => (Type::Int32, None),
        "int64" => (Type::Int64, None),
        "uint32" => (Type::Uint32, None),
        "uint64" => (Type::Uint64, None),
        _ => {
            let name = name.trim_start_matches("enum.");
            let full = if name.contains('.') {
                format!(".{name}")
            } else {
                format!(".{package}.{name}")
            };
            (if is_enum { Type::Enum } else { Type::Message }, Some(full))
        }
    };
    let label = if name == written {
        Label::Optional
    } else {
        Label::Repeated
    };
    FieldDescriptorProto {
        number: member.first().and_then(|number| number.parse().ok()),
        name: member.last().map(|name| (*name).to_owned()),
        label: Some(label.into()),
        r#type: Some(kind.into()),
        type_name,
        ..FieldDescriptorProto::default()
    }
}
