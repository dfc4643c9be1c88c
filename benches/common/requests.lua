-- Requests for wrk: documents in turn, by users in turn, each request with an id and a query of its own.
-- Argument: what all ids of this run begin with.
local count, run = 0, ""

function init(arguments)
  run = arguments[1]
end

function request()
  count = count + 1
  return "GET /document/" .. count % 1000 .. "?request=" .. run .. count .. " HTTP/1.1\r\nhost: 127.0.0.1\r\nx-user: user-"
    .. count % 100 .. "\r\nwebhook-id: " .. run .. count .. "\r\n\r\n"
end
