from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Rule(_message.Message):
    __slots__ = ("deny", "resource", "actions")
    DENY_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    deny: bool
    resource: str
    actions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, deny: _Optional[bool] = ..., resource: _Optional[str] = ..., actions: _Optional[_Iterable[str]] = ...) -> None: ...

class Role(_message.Message):
    __slots__ = ("name", "rules", "is_ready_made")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    IS_READY_MADE_FIELD_NUMBER: _ClassVar[int]
    name: str
    rules: _containers.RepeatedCompositeFieldContainer[Rule]
    is_ready_made: bool
    def __init__(self, name: _Optional[str] = ..., rules: _Optional[_Iterable[_Union[Rule, _Mapping]]] = ..., is_ready_made: _Optional[bool] = ...) -> None: ...

class Credential(_message.Message):
    __slots__ = ("id", "token_sha256", "sealed_secret", "certificate", "expires_unix_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_SHA256_FIELD_NUMBER: _ClassVar[int]
    SEALED_SECRET_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    token_sha256: bytes
    sealed_secret: bytes
    certificate: str
    expires_unix_ms: int
    def __init__(self, id: _Optional[str] = ..., token_sha256: _Optional[bytes] = ..., sealed_secret: _Optional[bytes] = ..., certificate: _Optional[str] = ..., expires_unix_ms: _Optional[int] = ...) -> None: ...

class Rates(_message.Message):
    __slots__ = ("bytes_per_second", "messages_per_second", "requests_per_second", "connections")
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    bytes_per_second: int
    messages_per_second: int
    requests_per_second: int
    connections: int
    def __init__(self, bytes_per_second: _Optional[int] = ..., messages_per_second: _Optional[int] = ..., requests_per_second: _Optional[int] = ..., connections: _Optional[int] = ...) -> None: ...

class User(_message.Message):
    __slots__ = ("name", "roles", "is_disabled", "credentials", "rates", "revision")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    IS_DISABLED_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    name: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    is_disabled: bool
    credentials: _containers.RepeatedCompositeFieldContainer[Credential]
    rates: Rates
    revision: int
    def __init__(self, name: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., is_disabled: _Optional[bool] = ..., credentials: _Optional[_Iterable[_Union[Credential, _Mapping]]] = ..., rates: _Optional[_Union[Rates, _Mapping]] = ..., revision: _Optional[int] = ...) -> None: ...

class RoleNames(_message.Message):
    __slots__ = ("roles",)
    ROLES_FIELD_NUMBER: _ClassVar[int]
    roles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, roles: _Optional[_Iterable[str]] = ...) -> None: ...

class PutUserRequest(_message.Message):
    __slots__ = ("name", "must_be_new", "is_disabled", "roles", "rates", "add_credentials", "remove_credentials", "secrets", "cluster_id", "must_exist")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MUST_BE_NEW_FIELD_NUMBER: _ClassVar[int]
    IS_DISABLED_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    ADD_CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    MUST_EXIST_FIELD_NUMBER: _ClassVar[int]
    name: str
    must_be_new: bool
    is_disabled: bool
    roles: RoleNames
    rates: Rates
    add_credentials: _containers.RepeatedCompositeFieldContainer[Credential]
    remove_credentials: _containers.RepeatedScalarFieldContainer[str]
    secrets: _containers.RepeatedScalarFieldContainer[bytes]
    cluster_id: str
    must_exist: bool
    def __init__(self, name: _Optional[str] = ..., must_be_new: _Optional[bool] = ..., is_disabled: _Optional[bool] = ..., roles: _Optional[_Union[RoleNames, _Mapping]] = ..., rates: _Optional[_Union[Rates, _Mapping]] = ..., add_credentials: _Optional[_Iterable[_Union[Credential, _Mapping]]] = ..., remove_credentials: _Optional[_Iterable[str]] = ..., secrets: _Optional[_Iterable[bytes]] = ..., cluster_id: _Optional[str] = ..., must_exist: _Optional[bool] = ...) -> None: ...

class DeleteUserRequest(_message.Message):
    __slots__ = ("name", "cluster_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    cluster_id: str
    def __init__(self, name: _Optional[str] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class DeleteUserResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListUsersRequest(_message.Message):
    __slots__ = ("cluster_id",)
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    def __init__(self, cluster_id: _Optional[str] = ...) -> None: ...

class ListUsersResponse(_message.Message):
    __slots__ = ("users", "roles", "mode")
    USERS_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[User]
    roles: _containers.RepeatedCompositeFieldContainer[Role]
    mode: str
    def __init__(self, users: _Optional[_Iterable[_Union[User, _Mapping]]] = ..., roles: _Optional[_Iterable[_Union[Role, _Mapping]]] = ..., mode: _Optional[str] = ...) -> None: ...

class PutRoleRequest(_message.Message):
    __slots__ = ("name", "rules", "cluster_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    rules: _containers.RepeatedCompositeFieldContainer[Rule]
    cluster_id: str
    def __init__(self, name: _Optional[str] = ..., rules: _Optional[_Iterable[_Union[Rule, _Mapping]]] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class DeleteRoleRequest(_message.Message):
    __slots__ = ("name", "cluster_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    cluster_id: str
    def __init__(self, name: _Optional[str] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class DeleteRoleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("user", "action", "resource")
    USER_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    user: str
    action: str
    resource: str
    def __init__(self, user: _Optional[str] = ..., action: _Optional[str] = ..., resource: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("is_allowed", "role", "rule", "needs")
    IS_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    is_allowed: bool
    role: str
    rule: Rule
    needs: str
    def __init__(self, is_allowed: _Optional[bool] = ..., role: _Optional[str] = ..., rule: _Optional[_Union[Rule, _Mapping]] = ..., needs: _Optional[str] = ...) -> None: ...

class HandAuditRequest(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, rows: _Optional[_Iterable[bytes]] = ...) -> None: ...

class HandAuditResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WhoAmIRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AuthenticateRequest(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class WhoAmIResponse(_message.Message):
    __slots__ = ("name", "roles", "mode")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    name: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    mode: str
    def __init__(self, name: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., mode: _Optional[str] = ...) -> None: ...
