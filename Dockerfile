# syntax=docker/dockerfile:1

FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=""
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /penstock ./cmd/penstock

# Nothing but the binary and the certificate authorities, for https engines.
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /penstock /penstock
USER 65532:65532
EXPOSE 8080 9090
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["/penstock", "health"]
ENTRYPOINT ["/penstock"]
# Without a configuration: the local model, for a first try. The admin listener
# stays on the container's loopback; a configuration of your own opens it.
CMD ["serve", "--listen", "0.0.0.0:8080"]
