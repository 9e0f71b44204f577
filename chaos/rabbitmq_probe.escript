#!/usr/bin/env escript
%% Looks into a RabbitMQ node without being one of its clients: nothing is taken out of a queue,
%% and what consumers hold is seen, too. `escript rabbitmq_probe.escript NODE`, the cookie in HOME.
%% A command a line in, an answer a line out; `error` and why if there is none.

main([Name]) ->
    Node = list_to_atom(Name),
    {ok, Cookie} = file:read_file(filename:join(os:getenv("HOME"), ".erlang.cookie")),
    Self = list_to_atom("probe" ++ os:getpid() ++ "@localhost"),
    {ok, _} = net_kernel:start([Self, shortnames]),
    erlang:set_cookie(node(), binary_to_atom(string:trim(Cookie))),
    loop(Node).

loop(Node) ->
    case io:get_line("") of
        eof -> ok;
        Line ->
            Words = [list_to_binary(Word) || Word <- string:lexemes(Line, " \n")],
            Answer = try answer(Node, Words)
                     catch Kind:Why -> io_lib:format("error ~0p", [{Kind, Why}])
                     end,
            io:format("~s~n", [Answer]),
            loop(Node)
    end.

%% Does the node answer, and is it up?
answer(Node, [<<"ping">>]) ->
    case call(Node, rabbit, is_running, []) of true -> "ok"; _ -> "error not running" end;
%% All messages of a queue: ready, held by consumers, on their way to another queue.
answer(Node, [<<"depth">>, VHost, Queue]) ->
    case lookup(Node, VHost, Queue) of
        none -> "none";
        Q -> integer_to_list(depth(Node, Q, quorum(Node, Q)))
    end;
%% The names of the queues that begin like this, with blanks between them.
answer(Node, [<<"queues">>, VHost, Prefix]) ->
    Size = byte_size(Prefix),
    Names = [Name || {resource, _, queue, Name} <- call(Node, rabbit_amqqueue, list_names, [VHost]),
                     byte_size(Name) > Size, binary:part(Name, 0, Size) =:= Prefix],
    case Names of [] -> "none"; _ -> lists:join(" ", Names) end;
%% The message at a place (from 1) among those that are ready in a quorum queue.
answer(Node, [<<"peek">>, VHost, Queue, Place]) ->
    case lookup(Node, VHost, Queue) of
        none -> "none";
        Q ->
            Server = call(Node, amqqueue, get_pid, [Q]),
            peeked(Node, call(Node, ra, aux_command, [Server, {peek, binary_to_integer(Place)}]))
    end;
answer(Node, [<<"add-vhost">>, VHost]) ->
    call(Node, rabbit_vhost, add, [VHost, <<"chaos">>]),
    All = <<".*">>,
    ok = call(Node, rabbit_auth_backend_internal, set_permissions,
              [<<"guest">>, VHost, All, All, All, <<"chaos">>]),
    "ok";
answer(Node, [<<"delete-vhost">>, VHost]) ->
    call(Node, rabbit_vhost, delete, [VHost, <<"chaos">>]),
    "ok";
%% The queues of a pattern take nothing more, and say so.
answer(Node, [<<"refuse">>, VHost, Pattern]) ->
    Full = [{<<"max-length">>, 0}, {<<"overflow">>, <<"reject-publish">>}],
    ok = call(Node, rabbit_policy, set,
              [VHost, <<"refuse">>, Pattern, Full, 0, <<"queues">>, <<"chaos">>]),
    "ok";
answer(Node, [<<"accept">>, VHost]) ->
    ok = call(Node, rabbit_policy, delete, [VHost, <<"refuse">>, <<"chaos">>]),
    "ok";
%% The share of the machine's memory from which on publishers are blocked.
answer(Node, [<<"watermark">>, Share]) ->
    call(Node, vm_memory_monitor, set_vm_memory_high_watermark, [binary_to_float(Share)]),
    "ok";
%% Have the names of quorum queues on disk now. The server writes them a few seconds after a queue
%% was declared, and loses the queue if it is killed before.
answer(Node, [<<"sync">>]) ->
    [call(Node, dets, sync, [Table]) || Table <- call(Node, dets, all, [])],
    "ok";
%% Queues whose process is gone.
answer(Node, [<<"down">>, VHost]) ->
    Down = call(Node, rabbit_amqqueue, list_down, [VHost]),
    integer_to_list(length(Down)).

lookup(Node, VHost, Queue) ->
    case call(Node, rabbit_amqqueue, lookup, [{resource, VHost, queue, Queue}]) of
        {ok, Q} -> Q;
        {error, not_found} -> none
    end.

quorum(Node, Q) -> call(Node, amqqueue, get_type, [Q]) =:= rabbit_quorum_queue.

depth(Node, Q, true) ->
    Server = call(Node, amqqueue, get_pid, [Q]),
    Query = fun rabbit_fifo:query_messages_total/1,
    {ok, Count, _} = call(Node, ra, consistent_query, [Server, Query]),
    Count;
depth(Node, Q, false) ->
    [{messages, Count}] = call(Node, rabbit_amqqueue, info, [Q, [messages]]),
    Count.

peeked(_, {error, _}) -> "none";
peeked(Node, {ok, {_, {basic_message, _, [Key | _], Content, _, _}}}) ->
    Decoded = call(Node, rabbit_binary_parser, ensure_content_decoded, [Content]),
    {content, _, Properties, _, _, Fragments} = Decoded,
    Id = element(10, Properties),
    Body = iolist_to_binary(lists:reverse(Fragments)),
    For = header(<<"x-matador-subscriber">>, element(4, Properties)),
    lists:join(" ", [Key | [base64:encode(One) || One <- [text(Id), For, Body]]]).

header(_, undefined) -> <<>>;
header(Name, Headers) ->
    case lists:keyfind(Name, 1, Headers) of
        {_, longstr, Value} -> Value;
        _ -> <<>>
    end.

text(undefined) -> <<>>;
text(Text) -> Text.

call(Node, Module, Function, Arguments) ->
    case rpc:call(Node, Module, Function, Arguments, 10000) of
        {badrpc, Why} -> throw(Why);
        Found -> Found
    end.
