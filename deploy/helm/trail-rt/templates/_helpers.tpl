{{/* Labels of an object of a component: (list . "worker"). */}}
{{- define "trail.labels" -}}
{{- $top := first . -}}
app.kubernetes.io/name: trail-rt
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{/* Labels of objects that belong to no component. */}}
{{- define "trail.common" -}}
app.kubernetes.io/name: trail-rt
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trail.image" -}}
{{- $default := ternary "trail-dynamo" "trail-rt" (eq .Values.mode "dynamo") -}}
{{- .Values.image.repository | default $default }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "trail.podSecurity" -}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "trail.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Environment of Dynamo's discovery through the Kubernetes API. */}}
{{- define "trail.dynamoEnv" -}}
- {name: DYN_DISCOVERY_BACKEND, value: kubernetes}
- {name: DYN_REQUEST_PLANE, value: tcp}
- {name: DYN_EVENT_PLANE, value: zmq}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
# The programs listen on loopback unless told otherwise.
- {name: DYN_TCP_RPC_HOST, value: $(POD_IP)}
- {name: DYN_TCP_RESPONSE_STREAM_HOST, value: $(POD_IP)}
- {name: DYN_EVENT_PLANE_HOST, value: $(POD_IP)}
- {name: DYN_SYSTEM_HOST, value: 0.0.0.0}
{{- end }}

{{/* Probes of a port once it has started. */}}
{{- define "trail.probes" -}}
readinessProbe:
  httpGet: {path: /health, port: {{ . }}}
  periodSeconds: 1
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /live, port: {{ . }}}
  periodSeconds: 5
  failureThreshold: 6
{{- end }}
