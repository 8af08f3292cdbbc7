%% Runs in a private RabbitMQ node and evaluates the expressions that tests send over loopback: a `rabbitmqctl` takes a
%% second of processor time each, since it starts a node of its own. The file with the name of this one and `.port` has the port.
Evaluate = fun(Text) ->
    try
        {ok, Tokens, _} = erl_scan:string(binary_to_list(Text)),
        {ok, Expressions} = erl_parse:parse_exprs(Tokens),
        {value, Value, _} = erl_eval:exprs(Expressions, []),
        io_lib:format("ok ~0p", [Value])
    catch
        Class:Reason -> io_lib:format("error ~0p ~0p", [Class, Reason])
    end
end,
Serve = fun(Socket) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, Text} -> gen_tcp:send(Socket, Evaluate(Text));
        _ -> ok
    end,
    gen_tcp:close(Socket)
end,
spawn(fun() ->
    Options = [binary, {packet, 4}, {active, false}, {ip, {127, 0, 0, 1}}],
    {ok, Listener} = gen_tcp:listen(0, Options),
    {ok, Port} = inet:port(Listener),
    ok = file:write_file(os:getenv("PACED_TEST_EVAL") ++ ".port", integer_to_list(Port) ++ "\n"),
    Loop = fun(Again) ->
        {ok, Socket} = gen_tcp:accept(Listener),
        Serve(Socket),
        Again(Again)
    end,
    Loop(Loop)
end).
